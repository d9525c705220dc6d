"""infercept: the next wait will be like the session's last ones.

InferCept (2402.01869, its min-waste rule) keeps, swaps or drops a context by the memory that it
wastes, which grows with the expected length of the interception. Without a CPU tier the choice that
is left is whom to drop: the session with the largest expected remaining wait, as in the CacheWise
paper's baseline, which forecasts by a moving average of the session's recent tool times.

Open in the descriptions: the window of the average (the last five here), a session's first wait
(the average over all sessions; before that, LRU), and a wait that outlasts its forecast (due at
once: the forecast says nothing else).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from cachewise_bench.policies.base import Away
from cachewise_bench.policies.ranked import RankedPolicy
from cachewise_bench.policies.vllm_prefix import VllmPrefix

WINDOW = 5


class InferCept(RankedPolicy):
    name = "infercept"
    source = "InferCept 2402.01869, min-waste, as in CacheWise's baseline; FCFS"

    def __init__(self) -> None:
        super().__init__()
        self._waits: dict[str, deque[float]] = {}
        self._total_s, self._count = 0.0, 0

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        if (away := self.away.get(session)) is not None:
            wait_s = now - away.since
            self._waits.setdefault(session, deque(maxlen=WINDOW)).append(wait_s)
            self._total_s += wait_s
            self._count += 1
        super().turn_arrived(session, request, now)

    def remaining_s(self, session: str, away: Away, now: float) -> float:
        elapsed = now - away.since
        if waits := self._waits.get(session):
            return max(sum(waits) / len(waits) - elapsed, 0.0)
        if self._count:
            return max(self._total_s / self._count - elapsed, 0.0)
        return elapsed


class InferCeptPrefix(InferCept, VllmPrefix):
    name = "infercept-prefix"
    source = "InferCept 2402.01869, min-waste, with CacheWise's min a_i"
