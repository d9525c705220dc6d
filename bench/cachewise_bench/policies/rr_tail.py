"""rr-tail: each idle session in turn gives its last block.

Round-robin tail eviction (2609.32278): instead of dropping one session whole, every session that is
away loses a little from its tail, so each return costs a short re-prefill and none a long one.
Scheduling stays FCFS.

Open: who counts as idle (whoever has free blocks of its own here, ended sessions too, since an
engine is not told of an end), and shared blocks (they go last here, least recently freed first).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import order_blocks

_SHARED = ""


class RoundRobinTails:
    """An EvictionOrder."""

    def __init__(self) -> None:
        self._owner: dict[int, str] = {}
        self._free: OrderedDict[str, OrderedDict[int, Any]] = OrderedDict()
        """Of each owner its free blocks, tail first; the owners in the order of their turns."""
        self._shared: OrderedDict[int, Any] = OrderedDict()

    def claim(self, session: str, blocks: list[Any]) -> None:
        for block in blocks:
            if self._owner.setdefault(block.block_id, session) != session:
                self._owner[block.block_id] = _SHARED

    def add(self, block: Any) -> None:
        # A request's blocks come tail first, and a session's later request holds them all.
        owner = self._owner[block.block_id]
        blocks = self._shared if owner == _SHARED else self._free.setdefault(owner, OrderedDict())
        blocks[block.block_id] = block

    def discard(self, block: Any) -> None:
        owner = self._owner[block.block_id]
        if owner == _SHARED:
            del self._shared[block.block_id]
            return
        del self._free[owner][block.block_id]
        if not self._free[owner]:
            del self._free[owner]

    def pop(self) -> Any:
        if not self._free:
            name, block = self._shared.popitem(last=False)
        else:
            owner, blocks = next(iter(self._free.items()))
            name, block = blocks.popitem(last=False)
            self._free.move_to_end(owner)
            if not blocks:
                del self._free[owner]
        del self._owner[name]
        return block


class RrTail(Policy):
    name = "rr-tail"
    source = "2609.32278: round-robin tail blocks of idle sessions; FCFS"

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        order_blocks(engine.scheduler, RoundRobinTails())
