"""Eviction by session: the blocks of the session that is wanted last go first, its tail first.

The base of all policies that forecast. Subclasses say how long a session will stay away; one whose
request is in the engine is wanted now, and one that has ended never.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.queues import rank_by_session


class RankedPolicy(Policy):
    rebuild_every: ClassVar[int] = 1
    """Steps between two rankings of all sessions; newly freed blocks are ranked at once."""
    can_rank: ClassVar[bool] = True

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._free_queue = rank_by_session(engine.scheduler, self)
        self._step = 0

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        if self._step % self.rebuild_every == 0:
            self._free_queue.begin_step(now)
            self._free_queue.ranks_changed()
        self._step += 1

    def time_to_reuse(self, session: str, now: float) -> float:
        """Seconds; what the free queue asks."""
        if session in self.ended:
            return math.inf
        away = self.away.get(session)
        return 0.0 if away is None else self.remaining_s(session, away, now)

    def most_time_to_reuse(self, session: str, now: float, until: float) -> float:
        """No bound is known, and SortedRanking does not ask."""
        return math.inf

    def remaining_s(self, session: str, away: Away, now: float) -> float:
        """How long the session will still be away, in seconds."""
        raise NotImplementedError


class SessionLru(RankedPolicy):
    """Least recently used by session, which does not know that a session has ended.

    A request uses its session's whole chain, so this is block LRU but for shared blocks, which are
    as recent as the last of their sessions.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_at: dict[str, float] = {}

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        self._left_at[session] = away.since

    def session_ended(self, session: str, now: float) -> None:
        super().session_ended(session, now)
        self._left_at[session] = now

    def time_to_reuse(self, session: str, now: float) -> float:
        here = session not in self.away and session not in self.ended
        return 0.0 if here else self.unused_rank(session, now - self._left_at[session])

    def unused_rank(self, session: str, unused_s: float) -> float:
        """The larger, the sooner the session's blocks go; unused_s: seconds since the last use."""
        return unused_s
