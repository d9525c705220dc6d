"""cost-lru: the prefix that is cheapest to compute again for the time that it has lain idle.

Cost-aware LRU at prefix granularity (2609.28870): evict first what has the least
recompute cost / time since the last access. Attention makes the cost of a prefix quadratic in its
length, so long contexts stay longer than under LRU.

Open: whether the cost is that of the whole prefix or of its blocks not yet evicted (the whole one
here, by the hardware's cost model), and whether it is divided by the size (it is not here).
"""

from __future__ import annotations

from typing import Any

from cachewise_bench.policies.ranked import SessionLru


class CostLru(SessionLru):
    name = "cost-lru"
    source = "2609.28870: recompute cost / time since access, at prefix granularity"

    def __init__(self) -> None:
        super().__init__()
        self._recompute_s: dict[str, float] = {}

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        super().turn_arrived(session, request, now)
        self._recompute_s[session] = self.engine.hardware.prefill_seconds(request.num_tokens)

    def unused_rank(self, session: str, unused_s: float) -> float:
        return unused_s / self._recompute_s[session]
