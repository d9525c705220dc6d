"""ours: the product itself. CacheWiseScheduler and all that it decides, on the virtual clock.

What a predictor would send is given at once: the wire's delay is a few milliseconds. A forecaster
turns a finished turn into a forecast; it sees the tool calls, and the waits that are over.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate
from cachewise_predictor import evidence
from cachewise_predictor.events import Wait
from cachewise_predictor.evidence import Recent
from cachewise_predictor.model import Model

from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.training import TENANT, calls_as_sent


class Forecaster(Protocol):
    """What stands in for the predictor."""

    def forecast(self, session: str, away: Away) -> Forecast | None:
        """At the end of a turn."""

    def returned(self, session: str, away: Away, waited_s: float) -> None:
        """The session's next request is here."""


class TrueWait:
    """The oracle: falls by a second per second; once it is over, the session is due at once."""

    def forecast(self, session: str, away: Away) -> Forecast:
        wait_s = away.returns_at - away.since
        return Forecast((0.0, max(wait_s, 1e-6)), (wait_s, 0.0), "oracle")

    def returned(self, session: str, away: Away, waited_s: float) -> None:
        pass


class LearnedWait:
    """The product's model of the training sessions, and the session's own last waits."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._recent: defaultdict[str, Recent] = defaultdict(tuple)

    def forecast(self, session: str, away: Away) -> Forecast:
        calls = calls_as_sent(away.turn)
        wait = Wait.TOOL if calls else Wait.HUMAN
        made = self._model.forecast(TENANT, wait, calls, self._recent[session])
        return Forecast(made.elapsed_s, made.remaining_s, made.source.value)

    def returned(self, session: str, away: Away, waited_s: float) -> None:
        if calls := calls_as_sent(away.turn):
            self._recent[session] = evidence.remember(self._recent[session], calls, waited_s)


class Ours(Policy):
    name = "ours"
    source = "this product"

    def __init__(
        self, forecaster: Forecaster | None, name: str = "ours", **settings: object
    ) -> None:
        """settings: the hook's, such as preset and mode."""
        super().__init__()
        self._settings = settings
        self.name = name  # type: ignore[misc]
        self._forecaster = forecaster

    def scheduler_class(self) -> Any:
        from cachewise_engine_hook.scheduler import CacheWiseScheduler

        return CacheWiseScheduler

    def settings(self) -> dict[str, object]:
        return self._settings

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        scheduler = engine.scheduler
        scheduler.clock = lambda: engine.now
        self._hook = scheduler._hook

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        if self._forecaster is not None and (away := self.away.get(session)) is not None:
            self._forecaster.returned(session, away, now - away.since)
        super().turn_arrived(session, request, now)

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        if self._forecaster is not None:
            forecast = self._forecaster.forecast(session, away)
            if forecast is not None:
                self._send(session, away, forecast)

    def session_ended(self, session: str, now: float) -> None:
        """The rivals that hold blocks for a session are told as well."""
        super().session_ended(session, now)
        if self._forecaster is not None:
            update = ForecastUpdate(hash_session(session, ""), now, None, ended=True)
            self._hook.take_forecast(update)

    def _send(self, session: str, away: Away, forecast: Forecast) -> None:
        update = ForecastUpdate(
            hash_session(session, ""),
            away.since,
            forecast,
            waits_for_human=not calls_as_sent(away.turn),
        )
        self._hook.take_forecast(update)
