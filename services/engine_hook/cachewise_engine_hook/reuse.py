"""When each session will be back, as eviction and admission see it, and what losing it would cost.

The session table knows the forecasts. Here they get their say, or lose it: blocks of parked
sessions go before any active one's, those of sessions that wait for a person before any other
active one's if human_first is set, and while the guard has no trust in forecasts the time that a
session has been away decides. With recompute_cost_weight a wait counts for less, the dearer the
session's context is to compute again.
"""

from __future__ import annotations

from collections.abc import Callable

from cachewise_engine_hook.config import Config
from cachewise_engine_hook.cost import Speed, relative_cost
from cachewise_engine_hook.guard import Guard
from cachewise_engine_hook.sessions import Session, SessionTable

PARKED_S, HUMAN_S = 1e9, 1e8
"""Added to the remaining wait of a parked session, and with human_first to that of one that waits
for a person: its blocks go before those of any session to which it is not added."""


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
        self._mode, self._human_first = config.mode, config.human_first
        self._cost_weight = config.recompute_cost_weight
        self._sessions, self._guard, self._speed = sessions, guard, speed
        self._is_active = is_active

    @property
    def can_rank(self) -> bool:
        return self._mode == "full" and self._sessions.can_rank and not self._guard.follows_lru

    def time_to_reuse(self, key: str, now: float) -> float:
        return self._rank_s(key, self._sessions.time_to_reuse(key, now))

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        return self._rank_s(key, self._sessions.most_time_to_reuse(key, now, until))

    def wait_s(self, key: str, now: float) -> float:
        """Remaining wait of a session, by its forecast unless the guard has no trust in them."""
        by_forecast = not self._guard.follows_lru
        wait_s = self._sessions.time_to_reuse(key, now, by_forecast)
        session = self._sessions.get(key)
        return wait_s + self._human_s(session) if by_forecast and session else wait_s

    def recompute_s(self, key: str) -> float:
        """Seconds that its context takes to compute again."""
        session = self._sessions.get(key)
        return self._speed.seconds_for(session.context_tokens) if session is not None else 0.0

    # ---- steps ----------------------------------------------------------------------------------

    def _rank_s(self, key: str, wait_s: float) -> float:
        """What the wait counts as among others. Ascends with it: so the largest of a time becomes
        the largest."""
        if (session := self._sessions.get(key)) is None:
            return wait_s
        if self._cost_weight:
            wait_s /= relative_cost(session.context_tokens) ** self._cost_weight
        rank_s = wait_s + self._human_s(session)
        return rank_s if self._is_active(key) else rank_s + PARKED_S

    def _human_s(self, session: Session) -> float:
        return HUMAN_S if self._human_first and session.waits_for_human else 0.0
