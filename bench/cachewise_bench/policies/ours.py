"""ours: the product itself. CacheWiseScheduler and all that it decides, on the virtual clock.

What a predictor would send is given at once: the wire's delay is a few milliseconds. A forecaster
turns a finished turn into a forecast; it sees the tool calls, never the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate

from cachewise_bench.policies.base import Away, Policy

Forecaster = Callable[[Away], Forecast | None]


def true_wait(away: Away) -> Forecast:
    """The oracle: falls by a second per second; once it is over, the session is due at once."""
    wait_s = away.returns_at - away.since
    return Forecast((0.0, max(wait_s, 1e-6)), (wait_s, 0.0), "oracle")


class Ours(Policy):
    name = "ours"
    source = "this product"

    def __init__(self, forecaster: Forecaster | None, name: str = "ours") -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._forecaster = forecaster

    def scheduler_class(self) -> Any:
        from cachewise_engine_hook.scheduler import CacheWiseScheduler

        return CacheWiseScheduler

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        scheduler = engine.scheduler
        scheduler.clock, scheduler.pause = lambda: engine.now, lambda seconds: None
        self._hook = scheduler._hook

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        if self._forecaster is not None and (forecast := self._forecaster(away)) is not None:
            self._send(session, away.since, forecast)

    def _send(self, session: str, since: float, forecast: Forecast) -> None:
        update = ForecastUpdate(hash_session(session, ""), since, forecast)
        self._hook.take_forecast(update)
