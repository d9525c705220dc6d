"""When each session will be back, as eviction and admission see it, and what losing it would cost.

The session table knows the forecasts. Here they get their say, or lose it: blocks of parked
sessions go before any active one's, and while the guard has no trust in forecasts the time that a
session has been away decides.
"""

from __future__ import annotations

from collections.abc import Callable

from cachewise_engine_hook.config import Config
from cachewise_engine_hook.cost import Speed
from cachewise_engine_hook.guard import Guard
from cachewise_engine_hook.sessions import SessionTable

PARKED_S = 1e9
"""Added to the remaining wait of a parked session: its blocks go before any active one's."""


class SessionReuse:
    """What the free queue asks (ranking.Reuse), and admission and claims."""

    def __init__(
        self,
        config: Config,
        sessions: SessionTable,
        guard: Guard,
        speed: Speed,
        is_active: Callable[[str], bool],
    ) -> None:
        """is_active: whether a session, by its key, is in the active set."""
        self._mode = config.mode
        self._sessions, self._guard, self._speed = sessions, guard, speed
        self._is_active = is_active

    @property
    def can_rank(self) -> bool:
        return self._mode == "full" and self._sessions.can_rank and not self._guard.follows_lru

    def time_to_reuse(self, key: str, now: float) -> float:
        wait_s = self._sessions.time_to_reuse(key, now)
        return wait_s if self._is_active(key) or key not in self._sessions else wait_s + PARKED_S

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        wait_s = self._sessions.most_time_to_reuse(key, now, until)
        return wait_s if self._is_active(key) or key not in self._sessions else wait_s + PARKED_S

    def wait_s(self, key: str, now: float) -> float:
        """Remaining wait of a session, by its forecast unless the guard has no trust in them."""
        return self._sessions.time_to_reuse(key, now, by_forecast=not self._guard.follows_lru)

    def recompute_s(self, key: str) -> float:
        """Seconds that its context takes to compute again."""
        session = self._sessions.get(key)
        return self._speed.seconds_for(session.context_tokens) if session is not None else 0.0
