"""Flow 1: a tool call becomes a forecast.

    report     events -> open and finished intervals -> journal (to the store), news to the replicas
    forecast   the open interval of a session, with the curve of the present model
    watch      one replica's stream: the sessions it announces, the forecasts it gets

All of it is memory: nothing here waits for the store. `sync.py` keeps both in step and sets
`model`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from .events import Event, SessionForecast, SessionKey
from .journal import Journal
from .metrics import Metrics
from .model import Model
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
                self._check(before, change)
                self._publish(change)
        self.expire()

    def expire(self) -> None:
        """Forgets what is over the bounds; to be called every few seconds."""
        for change in self.sessions.expire(self.clock()):
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
        return SessionForecast(key, opened.turn, elapsed_s, curve)

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

    def _check(self, before: SessionState | None, change: Change) -> None:
        """Counts whether a wait that is over was within the quantiles of its forecast."""
        interval = change.interval
        if interval is None or not interval.is_finished or before is None:
            return
        made = self.model.forecast(
            interval.key.tenant, interval.wait, interval.calls, before.recent
        )
        self.metrics.count_coverage(made, interval.seconds)

    def _publish(self, change: Change) -> None:
        """Tells everyone concerned: the store, the metrics, the replicas."""
        self.metrics.dropped_changes.inc(self.journal.record(change))
        if change.interval is not None:
            self.metrics.count_interval(change.interval)
        if change.has_ended:
            self.watchers.tell(change.key, has_ended=True)
        if change.has_opened:
            forecast = self.forecast(change.key).forecast
            assert forecast is not None
            self.metrics.count_forecast(forecast)
            self.watchers.tell(change.key)
