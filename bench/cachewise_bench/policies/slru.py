"""slru: segmented LRU over blocks. What was used once goes before what was used again.

Karedla, Love and Wherry, "Caching strategies to improve disk system performance" (1994). Two lists:
a block enters the probationary one, and the protected one after its second use. The protected list
is bounded; its oldest blocks fall back into the probationary list. Victims are the oldest
probationary blocks.

A use is a request that held the block. Open: the bound (0.8 of the pool here, as is common). Blocks
in use are in neither list.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import order_blocks

PROTECTED_SHARE = 0.8


class SegmentedLru:
    """An EvictionOrder."""

    def __init__(self, max_protected: int) -> None:
        self._max_protected = max_protected
        self._uses: dict[int, int] = {}
        self._probationary: OrderedDict[int, Any] = OrderedDict()
        self._protected: OrderedDict[int, Any] = OrderedDict()

    def claim(self, session: str, blocks: list[Any]) -> None:
        for block in blocks:
            self._uses[block.block_id] = self._uses.get(block.block_id, 0) + 1

    def add(self, block: Any) -> None:
        if self._uses.get(block.block_id, 0) < 2:
            self._probationary[block.block_id] = block
            return
        self._protected[block.block_id] = block
        if len(self._protected) > self._max_protected:
            name, oldest = self._protected.popitem(last=False)
            self._probationary[name] = oldest

    def discard(self, block: Any) -> None:
        if self._probationary.pop(block.block_id, None) is None:
            del self._protected[block.block_id]

    def pop(self) -> Any:
        name, block = (self._probationary or self._protected).popitem(last=False)
        del self._uses[name]
        return block


class Slru(Policy):
    name = "slru"
    source = "Karedla et al. 1994: segmented LRU; FCFS"

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        protected = int(PROTECTED_SHARE * engine.hardware.pool_blocks)
        order_blocks(engine.scheduler, SegmentedLru(protected))
