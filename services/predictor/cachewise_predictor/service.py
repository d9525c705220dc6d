"""Flow 1: a tool call becomes a forecast.

    report     events -> open and finished intervals -> journal (to the store), news to the replicas
    forecast   the open interval of a session, with the curve of the present model
    watch      one replica's stream: the sessions it announces, the forecasts it gets

All of it is memory: nothing here waits for the store. `sync.py` keeps both in step and sets
`model`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from .events import Event, Interval, SessionForecast, SessionKey
from .journal import Journal
from .metrics import Metrics
from .model import Model
from .quality import MadeForecast, pit
from .sessions import Change, Sessions, SessionState
from .watchers import Watcher, Watchers

_MOST_PER_MESSAGE = 500


class Predictor:
    """clock: seconds that never jump, counted from the epoch (they are stored)."""

    def __init__(
        self,
        sessions: Sessions,
        watchers: Watchers,
        journal: Journal,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.sessions, self.watchers, self.journal = sessions, watchers, journal
        self.metrics, self.clock = metrics, clock
        self._model = Model()
        self._made = dict[SessionKey, MadeForecast]()
        """Of the open intervals; those that came from the store are missing."""

    @property
    def model(self) -> Model:
        return self._model

    @model.setter
    def model(self, model: Model) -> None:
        self._model = model
        self.metrics.show_model(model)

    def report(self, events: Iterable[Event]) -> None:
        """Takes a batch of events, oldest first."""
        now = self.clock()
        for event in events:
            before = self.sessions.get(event.key)
            change = self.sessions.apply(event, now)
            self.metrics.count_event(event, change)
            if not change.is_duplicate:
                self._measure(change, before)
                self._publish(change)
        self.expire()

    def expire(self) -> None:
        """Forgets what is over the bounds; to be called every few seconds."""
        for change in self.sessions.expire(self.clock()):
            self._measure(change, None)
            self._publish(change)
        self.metrics.open_intervals.set(self.sessions.open_count)

    def forecast(self, key: SessionKey) -> SessionForecast:
        """The session's forecast as of now."""
        state = self.sessions.get(key)
        if state is None or state.open is None:
            return SessionForecast(key, has_ended=state is not None and state.ended_at is not None)
        opened = state.open
        elapsed_s = max(self.clock() - opened.opened_at, 0.0)
        curve = self.model.forecast(key.tenant, opened.wait, opened.calls, state.recent)
        return SessionForecast(key, opened.turn, elapsed_s, curve, opened.wait)

    def announce(
        self, watcher: Watcher, added: Iterable[SessionKey], removed: Iterable[SessionKey]
    ) -> None:
        """A replica's sessions changed; forecasts of waits that go on now are sent at once."""
        self.watchers.withdraw(watcher, removed)
        added = list(added)
        self.watchers.announce(watcher, added)
        for key in added:
            state = self.sessions.get(key)
            if state is not None and state.open is not None:
                watcher.tell(key)

    async def watch(self, watcher: Watcher) -> AsyncIterator[list[SessionForecast]]:
        """The news for one replica, as they come, until the watcher is closed."""
        while news := await watcher.take(_MOST_PER_MESSAGE):
            forecasts = [
                SessionForecast(key, has_ended=True) if has_ended else self.forecast(key)
                for key, has_ended in news
            ]
            forecasts = [f for f in forecasts if f.has_ended or f.forecast is not None]
            if forecasts:
                self.metrics.forecasts_sent.inc(sum(f.forecast is not None for f in forecasts))
                yield forecasts

    def _measure(self, change: Change, before: SessionState | None) -> None:
        """Counts how good the forecast of a wait was, if the wait is over."""
        if change.state is not None and change.state.open is not None and not change.has_opened:
            return
        made, interval = self._made.pop(change.key, None), change.interval
        if interval is None:
            return
        if made is None or made.turn != interval.turn:
            made = self._made_before_restart(interval, before)
        if made is not None:
            quality = pit(made.log_survival, interval.seconds, interval.is_finished)
            self.metrics.count_quality(interval, made.source, quality)

    def _made_before_restart(
        self, interval: Interval, before: SessionState | None
    ) -> MadeForecast | None:
        """What the engines got when they came back, near enough; None if the end of the turn came
        after the wait: nothing was forecast.
        """
        if before is None or before.open is None or before.open.turn != interval.turn:
            return None
        made = self.model.forecast(
            interval.key.tenant, interval.wait, interval.calls, before.recent
        )
        return MadeForecast(interval.turn, made.source, made.log_survival)

    def _publish(self, change: Change) -> None:
        """Tells everyone concerned: the store, the metrics, the replicas."""
        self.metrics.dropped_changes.inc(self.journal.record(change))
        if change.interval is not None:
            self.metrics.count_interval(change.interval)
        if change.has_ended:
            self.watchers.tell(change.key, has_ended=True)
        if change.has_opened:
            session = self.forecast(change.key)
            assert (forecast := session.forecast) is not None
            self._made[change.key] = MadeForecast(
                session.turn, forecast.source, forecast.log_survival
            )
            self.metrics.count_forecast(forecast)
            self.watchers.tell(change.key)
