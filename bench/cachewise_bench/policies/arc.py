"""arc: a cache that learns from its mistakes whether recency or frequency counts.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003, figure 4). T1
holds blocks used once, T2 those used again; B1 and B2 remember what was evicted from each. A block
that is needed again soon after it left T1 means that T1 was too small: its target grows; the same
for T2. Victims come from T1 while it is above its target.

A use is a request that held the block; a return is content computed again while its name is in B1
or B2. Left open by paged attention, which pins blocks in use: they are in no list here, so targets
and lists speak of free blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import order_blocks


class AdaptiveOrder:
    """An EvictionOrder."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        """Of T1, in blocks."""
        self._recent: OrderedDict[int, Any] = OrderedDict()
        self._frequent: OrderedDict[int, Any] = OrderedDict()
        self._left_recent: OrderedDict[bytes, None] = OrderedDict()
        self._left_frequent: OrderedDict[bytes, None] = OrderedDict()
        self._used_again: dict[int, bool] = {}
        """Of each block that has content and was in use."""

    def claim(self, session: str, blocks: list[Any]) -> None:
        for block in blocks:
            known = block.block_id in self._used_again
            self._used_again[block.block_id] = known or self._returns(block.block_hash)

    def add(self, block: Any) -> None:
        again = self._used_again.get(block.block_id, False)
        (self._frequent if again else self._recent)[block.block_id] = block

    def discard(self, block: Any) -> None:
        if self._recent.pop(block.block_id, None) is None:
            del self._frequent[block.block_id]

    def pop(self) -> Any:
        recent = self._recent and (len(self._recent) > self._target or not self._frequent)
        victims = self._recent if recent else self._frequent
        ghosts = self._left_recent if recent else self._left_frequent
        name, block = victims.popitem(last=False)
        ghosts[block.block_hash] = None
        if len(ghosts) > self._capacity:
            ghosts.popitem(last=False)
        self._used_again.pop(name, None)
        return block

    def _returns(self, content: bytes) -> bool:
        """Whether the content was evicted not long ago; moves the target if so."""
        recent, frequent = len(self._left_recent), len(self._left_frequent)
        if content in self._left_recent:
            del self._left_recent[content]
            self._target = min(self._target + max(1.0, frequent / recent), self._capacity)
            return True
        if content in self._left_frequent:
            del self._left_frequent[content]
            self._target = max(self._target - max(1.0, recent / frequent), 0.0)
            return True
        return False


class Arc(Policy):
    name = "arc"
    source = "Megiddo and Modha, FAST 2003, figure 4; FCFS"

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        order_blocks(engine.scheduler, AdaptiveOrder(engine.hardware.pool_blocks))
