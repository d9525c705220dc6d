"""vllm-prefix: stock LRU eviction, the waiting request with the fewest missing blocks first.

The paper's ablation of its prefix-aware scheduling alone. a_i = blocks needed - blocks resident
(section 4). The paper states no bound on overtaking, so there is none here.
"""

from __future__ import annotations

from typing import Any

from cachewise_engine_hook.waiting_queue import PrefixAwareQueue

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import resident_blocks


class VllmPrefix(Policy):
    name = "vllm-prefix"
    source = "CacheWise, ablation of section 4: min a_i, LRU"

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self.waiting: PrefixAwareQueue[Any] = PrefixAwareQueue(
            self.missing_blocks, max_overtakes=1 << 60, max_wait_s=float("inf")
        )
        engine.scheduler.waiting = self.waiting

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        self.waiting.end_step()
        self.waiting.begin_step(now)

    def missing_blocks(self, request: Any) -> int:
        """a_i."""
        needed = -(-int(request.num_tokens) // int(self.engine.hardware.block_size))
        return needed - resident_blocks(self.engine, request)
