"""cachewise: the paper (2606.16824), as published.

Section 4: the waiting request with the fewest missing blocks first. Reuse-aware eviction: the
session with the largest expected remaining wait E[T - t | T > t] gives its blocks first, by the
curve of its call's cluster (see clusters.py); sessions that wait for a person go before all that
wait for a tool; ranks are made anew every 3 iterations.

The oracle, the paper's CacheWise*, knows the true remaining wait instead. Open: the order among
sessions that wait for a person (the one away longest first here), and bounds on overtaking (none).
"""

from __future__ import annotations

from cachewise_bench.policies.base import Away
from cachewise_bench.policies.clusters import Curve
from cachewise_bench.policies.ranked import RankedPolicy
from cachewise_bench.policies.training import Training
from cachewise_bench.policies.vllm_prefix import VllmPrefix

_HUMAN_S = 1e9


class CacheWise(RankedPolicy, VllmPrefix):
    name = "cachewise"
    source = "CacheWise 2606.16824: section 4 and its reuse-aware eviction"
    rebuild_every = 3

    def __init__(self, training: Training, clusters: int) -> None:
        super().__init__()
        self.name = f"cachewise-c{clusters}"  # type: ignore[misc]
        self._curves = training.clusters(clusters)
        self._curve: dict[str, Curve] = {}

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        if away.turn.tool_calls:
            self._curve[session] = self._curves.curve(away.turn.tool_calls)

    def remaining_s(self, session: str, away: Away, now: float) -> float:
        elapsed_s = now - away.since
        if not away.turn.tool_calls:
            return _HUMAN_S + elapsed_s
        return self._curve[session].remaining_s(elapsed_s)


class CacheWiseOracle(RankedPolicy, VllmPrefix):
    name = "cachewise-oracle"
    source = "CacheWise 2606.16824, its CacheWise*: true remaining waits"
    rebuild_every = 3

    def remaining_s(self, session: str, away: Away, now: float) -> float:
        return max(away.returns_at - now, 0.0)
