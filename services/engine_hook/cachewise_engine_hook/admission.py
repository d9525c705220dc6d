"""Admission: which sessions are active, so that the working set of the active ones fits the pool.

When sessions together want more KV than the pool holds, any order of eviction thrashes: each one's
turn pushes out what the next one needs. So only the active sessions run and keep their blocks; the
requests of the others, the parked ones, wait. The paper does not control this.

A parked request enters when its missing blocks fit into the room: blocks that nobody active holds
or is about to need. The order of entry is a_i minus AGEING_BLOCKS_PER_S for every second of
waiting. If the first in that order finds no room, it may displace active sessions that are away in
a tool call, longest forecast first, where that pays: the engine must recompute what it drops, at
everybody's expense, so a session is displaced only if its remaining wait exceeds PAYBACK times the
seconds that its prefix costs to compute again. While the engine has nothing else to run the expense
is small, and PAYBACK_WHEN_IDLE holds. And patience ends: the payback asked for falls with the time
that the request has waited, to nothing at PATIENCE_S. Whoever is displaced must then wait in turn,
so swaps stay rare.

A session whose request is running, and one whose request was preempted, is active always. Without
pressure everybody fits, nobody is ever parked, and the waiting queue keeps the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

AGEING_BLOCKS_PER_S = 5.0
PAYBACK, PAYBACK_WHEN_IDLE = 40.0, 2.0
PATIENCE_S = 100.0
OUTPUT_TOKENS = 1_000
"""Room kept for an answer; max_tokens says little, it is mostly the model's limit."""
SLACK = 0.02
"""Share of the pool that is left for growth that was not foreseen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session with waiting requests, as admission sees it."""

    session: str
    missing_blocks: int
    """a_i: blocks to be allocated before it can answer."""
    waited_s: float
    must_run: bool = False
    """Preempted: it was active and lost its blocks through no fault of its own."""

    def joined(self, other: Candidate) -> Candidate:
        """Two requests of one session, which share their prefix, as one."""
        return Candidate(
            self.session,
            max(self.missing_blocks, other.missing_blocks),
            max(self.waited_s, other.waited_s),
            self.must_run or other.must_run,
        )


class ActiveSet:
    """The active sessions. Everything is decided in update, once per step."""

    def __init__(
        self,
        pool_blocks: int,
        time_to_reuse: Callable[[str, float], float],
        recompute_s: Callable[[str], float],
    ) -> None:
        """time_to_reuse: remaining wait of a session in seconds. recompute_s: what it costs to
        compute its resident prefix again."""
        self.parked = 0
        """Sessions with a waiting request that may not run now."""
        self.is_pressed = False
        """Whether the active sessions' blocks, with those that now enter, outgrow the pool."""
        self.displaced = self.left = 0
        """Sessions parked for another's sake, and because the active ones had outgrown the pool."""
        self.on_parked: Callable[[str, str, str], None] = lambda session, why, for_whom: None
        """Called when a session that was active is parked: "displaced" for whom, or "left"."""
        self._time_to_reuse, self._recompute_s = time_to_reuse, recompute_s
        self._slack = int(SLACK * pool_blocks)
        self._active: set[str] = set()

    def __contains__(self, session: str) -> bool:
        return session in self._active

    def forget(self, session: str) -> None:
        """The session has ended, or the table has dropped it."""
        self._active.discard(session)

    def update(
        self,
        now: float,
        waiting: Collection[Candidate],
        running: set[str],
        room: Callable[[], int],
        holders: AbstractSet[str],
    ) -> None:
        """Decides who is active in this step.

        waiting: one candidate per session.
        holders: sessions that hold free blocks; of the others only those that are here count.
        room: blocks that are free and not held for an active session, less what running requests
        still need; asked again after each displacement.
        """
        self._active &= holders | {c.session for c in waiting}
        self._active |= running | {c.session for c in waiting if c.must_run}
        here = running | {c.session for c in waiting}
        away = self._away(now, here)
        entering = [c for c in waiting if c.session in self._active]
        self.is_pressed = room() < self._slack + sum(c.missing_blocks for c in waiting)
        needed = self._park(entering, away, running, room)
        parked = [c for c in waiting if c.session not in self._active]
        parked.sort(key=lambda c: c.missing_blocks - AGEING_BLOCKS_PER_S * c.waited_s)
        full_payback = PAYBACK if running or entering else PAYBACK_WHEN_IDLE
        for candidate in parked:
            payback = full_payback * max(0.0, 1.0 - candidate.waited_s / PATIENCE_S)
            alone = not self._active
            self._active.add(candidate.session)  # room now counts what it holds already
            needed += candidate.missing_blocks
            if not alone and not self._displace(candidate, needed, away, room, payback):
                self._active.discard(candidate.session)
                break
        self.parked = len(here - self._active)

    def _park(
        self,
        entering: list[Candidate],
        away: list[tuple[float, str]],
        running: set[str],
        room: Callable[[], int],
    ) -> int:
        """Where the active sessions have outgrown the pool, parks some until the rest fits.

        First those that are away, the longest forecast first; then entering ones, the most missing
        first; never a running one, nor the last. Returns the blocks that those who enter need, and
        the slack.
        """
        needed = self._slack + sum(c.missing_blocks for c in entering)
        for _, session in away:
            if room() >= needed:
                return needed
            self._leave(session)
        for candidate in sorted(entering, key=lambda c: -c.missing_blocks):
            if room() >= needed or len(self._active) == 1:
                break
            if not candidate.must_run and candidate.session not in running:
                self._leave(candidate.session)
                needed -= candidate.missing_blocks
        return needed

    def _leave(self, session: str) -> None:
        self._active.discard(session)
        self.left += 1
        self.on_parked(session, "left", "")

    def _displace(
        self,
        candidate: Candidate,
        needed: int,
        away: list[tuple[float, str]],
        room: Callable[[], int],
        payback: float,
    ) -> bool:
        """Parks sessions that are away until there is room, or until only the one that enters is
        left: it may need all of the pool.

        False where even all that pay are too few. Then none is parked, unless patience has ended
        (payback 0): those stay parked, so that the room adds up.
        """
        chosen = [
            session
            for wait_s, session in away
            if session in self._active and wait_s >= payback * self._recompute_s(session)
        ]
        if room() >= needed:
            return True
        self._active.difference_update(chosen)
        if room() < needed and len(self._active) > 1:
            if payback > 0:
                self._active.update(chosen)
            else:
                self._tell_displaced(chosen, candidate)
            return False
        for session in reversed(chosen):  # those that need not go after all, the soonest back first
            self._active.add(session)
            if room() < needed:
                self._active.discard(session)
                break
        displaced = [session for session in chosen if session not in self._active]
        self.displaced += len(displaced)
        self._tell_displaced(displaced, candidate)
        return True

    def _tell_displaced(self, displaced: list[str], candidate: Candidate) -> None:
        for session in displaced:
            self.on_parked(session, "displaced", candidate.session)

    def _away(self, now: float, here: set[str]) -> list[tuple[float, str]]:
        """Active sessions without a request here, the one that is away longest first."""
        return sorted(((self._time_to_reuse(s, now), s) for s in self._active - here), reverse=True)
