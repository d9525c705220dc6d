"""belady: evict what is used farthest in the future. A bound, not a policy that could be built.

Belady, "A study of replacement algorithms for a virtual-storage computer" (1966). In a closed loop
the future depends on what is evicted, so the policy takes the nearest thing that is known: sessions
that are away are used at their true return, and those that wait before all of them, in the order in
which they will be admitted (min a_i). It is no bound on time: scheduling reorders requests.

On a fixed order the bound is exact: least_misses.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

from cachewise_bench.policies.base import Away
from cachewise_bench.policies.ranked import RankedPolicy
from cachewise_bench.policies.vllm_prefix import VllmPrefix

_SOON_S = 1e-9


class Belady(RankedPolicy, VllmPrefix):
    name = "belady"
    source = "Belady 1966: farthest true next use; min a_i"

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        waiting = (request.session_id for request in self.waiting)
        self._turn_of = {session: i for i, session in enumerate(waiting)}

    def time_to_reuse(self, session: str, now: float) -> float:
        if (turn := self._turn_of.get(session)) is not None:
            return _SOON_S * turn
        return super().time_to_reuse(session, now)

    def remaining_s(self, session: str, away: Away, now: float) -> float:
        return max(away.returns_at - now, _SOON_S * len(self._turn_of))


def least_misses(uses: Iterable[Hashable], capacity: int) -> int:
    """The fewest misses that any eviction can have on these uses of blocks, in this order, with so
    many blocks of memory."""
    uses = list(uses)
    positions: dict[Hashable, deque[int]] = defaultdict(deque)
    for i, block in enumerate(uses):
        positions[block].append(i)
    resident: dict[Hashable, int] = {}
    farthest: list[tuple[int, int]] = []
    misses = 0
    for i, block in enumerate(uses):
        positions[block].popleft()
        if block not in resident:
            misses += 1
            while len(resident) >= capacity:
                next_use, last_use = heapq.heappop(farthest)
                victim = uses[last_use]
                if resident.get(victim) == last_use:
                    del resident[victim]
        resident[block] = i
        next_use = positions[block][0] if positions[block] else len(uses)
        heapq.heappush(farthest, (-next_use, i))
    return misses
