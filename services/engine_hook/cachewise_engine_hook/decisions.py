"""The decision trace: why a session was parked, let in, displaced, evicted; a sample, off at first.

The sessions traced are chosen by their key, so the story of one is whole, on every replica:

    parked      no room for its request: blocks that it lacks, room that there is
    entered     its request may run, so many seconds after it came
    displaced   parked while away, for another's sake: whose, its remaining wait, cost to recompute
    left        parked because the active sessions had outgrown the pool
    evicted     it lost so many blocks, by forecast or in stock order; when it was wanted
    restored    its next request runs: tokens found, and those that are computed again

What is noted goes to a bounded ring, the newest last, that the listing reads. No log line, no lock.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cachewise_engine_hook.admission import Candidate
from cachewise_engine_hook.room import Room

TRACE_SIZE = 5_000
_HASHES = 1 << 32


@dataclass(frozen=True, slots=True)
class Decision:
    """at: seconds of the engine's clock. details: numbers with their units in their names."""

    at: float
    session: str
    what: str
    details: dict[str, float | str]


class DecisionTrace:
    """Written by the scheduler's thread; it asks `wants` before it gathers anything."""

    def __init__(self, share: float, size: int = TRACE_SIZE) -> None:
        """share: of the sessions that are traced, 0 to 1."""
        self.decisions: deque[Decision] = deque(maxlen=size)
        self._below = int(share * _HASHES)
        self._parked: set[str] = set()
        """Those of the traced sessions that waited for room when admission last decided."""

    def wants(self, session: str) -> bool:
        return zlib.crc32(session.encode()) < self._below

    def note(self, now: float, session: str, what: str, **details: float | str) -> None:
        self.decisions.append(Decision(now, session, what, details))

    def waiting_inside(
        self, waiting: Collection[Candidate], active: Callable[[str], bool]
    ) -> set[str]:
        """The traced sessions that wait and are active; to be asked before admission decides."""
        return {c.session for c in waiting if self.wants(c.session) and active(c.session)}

    def admission(
        self,
        now: float,
        waiting: Collection[Candidate],
        inside: AbstractSet[str],
        is_active: Callable[[str], bool],
        room: Room,
    ) -> None:
        """What admission has decided of the sessions that wait. inside: see waiting_inside."""
        here = [c for c in waiting if self.wants(c.session)]
        parked = {c.session for c in here if not is_active(c.session)}
        for candidate in here:
            session = candidate.session
            if session in parked and session not in self._parked:
                missing = candidate.missing_blocks
                room.enters(session)  # what it holds itself is no room for it
                self.note(now, session, "parked", missing_blocks=missing, room_blocks=room.blocks)
                room.leaves(session)
            elif session not in parked and session not in inside:
                waited_s = now - candidate.since
                self.note(now, session, "entered", waited_s=waited_s, room_blocks=room.blocks)
        self._parked = parked
