"""Admission: which sessions are active, so that the working set of the active ones fits the pool.

When sessions together want more KV than the pool holds, any order of eviction thrashes: each one's
turn pushes out what the next one needs. So only the active sessions run and keep their blocks; the
requests of the others, the parked ones, wait. The paper does not control this.

A parked request enters when its missing blocks fit into the room: blocks that nobody active holds
or is about to need. The one with the fewest missing enters first, of those of the best standing
(standing.py). If it finds no room, it may displace active sessions that are away in a tool call,
longest forecast first, where that pays: the engine must compute again what it drops, at everybody's
expense, so a session is displaced only if its remaining wait exceeds PAYBACK times the seconds that
its prefix costs to compute again. While the engine has nothing else to run the expense is small,
and PAYBACK_WHEN_IDLE holds; and once it has stood idle for those seconds, waiting on has cost as
much as the displacing would have (the rule for renting skis: never more than twice the better
choice, however wrong the forecast).

And patience ends: a request that has waited for so long enters before all others, the oldest first,
and displaces whoever is away. How long follows from what it costs. With parked requests that all
must be computed again, one such entry for each per patience takes the share

    sum over parked of (missing blocks * seconds per block) / patience

of the engine's time; patience is what keeps it at SWAP_SHARE. So rotation stays cheap at any load:
twice the sessions wait twice as long. The share is the one choice between the mean and the tail.

A session whose request is running, and one whose request was preempted, is active always. Without
pressure everybody fits, nobody is ever parked, and the waiting queue keeps the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop
from typing import NamedTuple

from cachewise_engine_hook.block_groups import Groups
from cachewise_engine_hook.room import Room
from cachewise_engine_hook.standing import Standing

OUTPUT_TOKENS = 1_000
"""Room kept for an answer; max_tokens says little, it is mostly the model's limit."""
SLACK = 0.05
"""Share of the pool that is left for growth that was not foreseen."""


PAYBACK, PAYBACK_WHEN_IDLE = 40.0, 2.0
SWAP_SHARE = {"throughput": 0.1, "fair": 0.4}
"""By preset: share of the engine's time that may go into computing again what was displaced for
those whose patience has ended."""
PATIENCE_S = (10.0, 1800.0)
"""Bounds of patience."""


class Candidate(NamedTuple):
    """A session with waiting requests, as admission sees it. The lower enters first."""

    priority: int
    """vLLM's, where it decides: the lower goes first, whatever it needs."""
    standing: Standing
    """Its class and its tenant's: the lower goes first among those of equal priority."""
    missing_blocks: int
    """a_i: blocks to be allocated before it can answer."""
    order: int
    """Its place in the order of arrival."""
    session: str
    since: float
    """When its request came, the oldest one's, in seconds of the engine's clock."""
    must_run: bool = False
    """Preempted: it was active and lost its blocks through no fault of its own."""

    def joined(self, other: Candidate) -> Candidate:
        """Two requests of one session, which share their prefix, as one."""
        return Candidate(
            min(self.priority, other.priority),
            min(self.standing, other.standing),
            max(self.missing_blocks, other.missing_blocks),
            min(self.order, other.order),
            self.session,
            min(self.since, other.since),
            self.must_run or other.must_run,
        )


class ActiveSet:
    """The active sessions. Everything is decided in update."""

    def __init__(
        self,
        swap_share: float,
        pool_blocks: int,
        time_to_reuse: Callable[[str, float], float],
        recompute_s: Callable[[str], float],
    ) -> None:
        """time_to_reuse: a session's remaining wait in seconds, or below 0 if only patience may
        displace it. recompute_s: what it costs to compute its resident prefix again."""
        self.parked = 0
        """Sessions with a waiting request that may not run now."""
        self.is_pressed = False
        """Whether the active sessions' blocks, with those that now enter, outgrow the pool."""
        self.displaced = self.left = 0
        """Sessions parked for another's sake, and because the active ones had outgrown the pool."""
        self.on_parked: Callable[[str, str, str], None] = lambda session, why, for_whom: None
        """Called when a session that was active is parked: "displaced" for whom, or "left"."""
        self._swap_share, self._patience_s = swap_share, PATIENCE_S[0]
        self._time_to_reuse, self._recompute_s = time_to_reuse, recompute_s
        self._slack = int(SLACK * pool_blocks)
        self._idle_since: float | None = None
        """Since when nobody runs or enters, though somebody waits."""
        self._active: set[str] = set()
        self._told: set[str] = set()
        """The active ones when take_changed was last asked."""
        self._forgotten: set[str] = set()
        """Since then."""
        self._room = Room(pool_blocks, Groups())
        self._now, self._here = 0.0, set[str]()
        """Of the update that goes on: its moment, and the sessions with a request in the engine."""
        self._known_away: list[tuple[float, str]] | None = None

    def __contains__(self, session: str) -> bool:
        return session in self._active

    def __len__(self) -> int:
        return len(self._active)

    def take_changed(self) -> set[str]:
        """The sessions that have become active, or are so no more, since this was last asked."""
        changed = self._forgotten | (self._told ^ self._active)
        self._told, self._forgotten = set(self._active), set()
        return changed

    def forget(self, session: str) -> None:
        """The session has ended, or the table has dropped it."""
        if session in self._active:
            self._active.remove(session)
            self._forgotten.add(session)

    def update(
        self,
        now: float,
        waiting: Collection[Candidate],
        running: set[str],
        room: Room,
        seconds_per_block: float = 0.0,
    ) -> None:
        """Decides who is active from now on.

        waiting: one candidate per session.
        seconds_per_block: what computing a block takes.
        room: with nobody active yet, less what running requests still need. Of the sessions that
        are away only those that own a free block stay active.
        """
        here = running | {c.session for c in waiting}
        self._room, self._now, self._here, self._known_away = room, now, here, None
        active = self._active = (self._active & here) | room.owners_among(self._active)
        active |= running | {c.session for c in waiting if c.must_run}
        room.begin(active)
        entering = [c for c in waiting if c.session in active]
        self.is_pressed = room.blocks < self._slack + sum([c.missing_blocks for c in waiting])
        needed = self._park(entering, running)
        parked = [c for c in waiting if c.session not in active]
        swap_s = seconds_per_block * sum([c.missing_blocks for c in parked])
        shortest_s, longest_s = PATIENCE_S
        self._patience_s = min(max(swap_s / self._swap_share, shortest_s), longest_s)
        self._enter(parked, needed, self._idle_s(waiting, bool(running or entering)))
        if not here.isdisjoint(active):
            self._idle_since = None
        self.parked = len(here - active)

    # ---- steps ----------------------------------------------------------------------------------

    def _idle_s(self, waiting: Collection[Candidate], is_busy: bool) -> float | None:
        """For how long the engine has had nothing to run, though somebody waits; None if it has."""
        if is_busy:
            return None
        if self._idle_since is None:
            self._idle_since = self._now
        oldest = min((c.since for c in waiting), default=self._now)
        return self._now - max(self._idle_since, oldest)

    def _park(self, entering: list[Candidate], running: set[str]) -> int:
        """Where the active sessions have outgrown the pool, parks some until the rest fits.

        First those that are away, the longest forecast first; then entering ones, the least urgent
        first, and of these the most missing; never a running one, nor the last. Returns the blocks
        that those who enter need, and the slack.
        """
        needed = self._slack + sum(c.missing_blocks for c in entering)
        if self._room.blocks >= needed:
            return needed
        for _, session in self._away():
            self._outgrown(session)
            if self._room.blocks >= needed:
                return needed
        for candidate in sorted(entering, reverse=True):
            if self._room.blocks >= needed or len(self._active) == 1:
                break
            if not candidate.must_run and candidate.session not in running:
                self._outgrown(candidate.session)
                needed -= candidate.missing_blocks
        return needed

    def _outgrown(self, session: str) -> None:
        self._leaves(session)
        self.left += 1
        self.on_parked(session, "left", "")

    def _enter(self, parked: list[Candidate], needed: int, idle_s: float | None) -> None:
        """Lets parked sessions in, one by one in the order of entry, while there is room."""
        full_payback = PAYBACK if idle_s is None else PAYBACK_WHEN_IDLE
        impatient = [c for c in parked if self._now - c.since >= self._patience_s]
        impatient.sort(key=lambda c: (c.priority, c.since, c.order), reverse=True)
        # A heap, since nearly always only the first few are asked for.
        patient = [c for c in parked if self._now - c.since < self._patience_s]
        heapify(patient)
        while impatient or patient:
            if impatient and (not patient or impatient[-1].priority <= patient[0].priority):
                candidate, payback = impatient.pop(), 0.0
            else:
                candidate, payback = heappop(patient), full_payback
            alone = not self._active
            self._enters(candidate.session)  # room now counts what it holds already
            needed += candidate.missing_blocks
            if not alone and not self._displace(candidate, needed, payback, idle_s or 0.0):
                self._leaves(candidate.session)
                return

    def _displace(
        self,
        candidate: Candidate,
        needed: int,
        payback: float,
        idle_s: float,
    ) -> bool:
        """Parks sessions that are away until there is room, or until only the one that enters is
        left: it may need all of the pool.

        False where even all that pay are too few. Then none is parked, unless patience has ended
        (payback 0): those stay parked, so that the room adds up.
        """
        chosen: list[str] = []
        if self._room.blocks >= needed:
            return True
        for wait_s, session in self._away():
            if self._room.blocks >= needed:
                break
            if session in self._active and self._pays(session, wait_s, payback, idle_s):
                self._leaves(session)
                chosen.append(session)
        fits = self._room.blocks >= needed or len(self._active) == 1
        if not fits and payback > 0:
            for session in chosen:
                self._enters(session)
            return False
        self.displaced += len(chosen)
        for session in chosen:
            self.on_parked(session, "displaced", candidate.session)
        return fits

    def _pays(self, session: str, wait_s: float, payback: float, idle_s: float) -> bool:
        if payback == 0:
            return True
        if wait_s < 0:
            return False
        recompute_s = self._recompute_s(session)
        return wait_s >= payback * recompute_s or idle_s >= recompute_s

    def _away(self) -> list[tuple[float, str]]:
        """Active sessions without a request here, the one that is away longest first.

        Asked for where room is short; those who are parked since this was first asked are in it.
        """
        if self._known_away is None:
            reuse, now = self._time_to_reuse, self._now
            away = [(reuse(session, now), session) for session in self._active - self._here]
            away.sort(reverse=True)
            self._known_away = away
        return self._known_away

    def _enters(self, session: str) -> None:
        self._active.add(session)
        self._room.enters(session)

    def _leaves(self, session: str) -> None:
        self._active.discard(session)
        self._room.leaves(session)
