"""lpm: SGLang's default, longest resident prefix first, over its radix tree's leaf LRU.

SGLang (2312.07104, section 3, and its schedule_policy.py): waiting requests are sorted by the
length of their cached prefix; with more than 128 waiting that is too slow, and they go in the order
of arrival. The cache evicts leaves by the time of their last access. Looking up a waiting request's
prefix is an access: a side effect that spares the prefixes of whoever waits.

Left out: SGLang also holds back a request that shares a prefix with one just admitted. Open: ties
in the prefix length (order of arrival here).
"""

from __future__ import annotations

from typing import Any

from cachewise_bench.policies.queues import OrderedQueue, resident_blocks
from cachewise_bench.policies.ranked import SessionLru

FCFS_ABOVE_WAITING = 128


class Lpm(SessionLru):
    name = "lpm"
    source = "SGLang 2312.07104 section 3: longest prefix match, leaf LRU"

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._waiting = OrderedQueue(self._key)
        engine.scheduler.waiting = self._waiting

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        self._waiting.begin_step()

    def _key(self, request: Any) -> int:
        if len(self._waiting) > FCFS_ABOVE_WAITING:
            return 0
        return -resident_blocks(self.engine, request)
