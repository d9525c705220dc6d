"""Claimed blocks: the free queue in front of the free queue, which keeps back what claims protect.

While a claim lives, its blocks that no request uses are held here and are not in the queue behind,
so they cannot be a victim in whatever order that one chooses. To vLLM they are free blocks like any
other: if it wants more than the queue behind has, `make_room` breaks claims until there is enough.
A claim that ends gives its blocks to the queue behind, tail first, as a request that finishes does.

A block may be of several claims (a system prompt): it is held until the last of them ends. Claims
cover prefixes, so whoever claims a block claims all its ancestors too, and an ancestor never goes
before its descendant.

While there is no claim, the queue behind does all the work, its own methods called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from cachewise_engine_hook.block_groups import Block
from cachewise_engine_hook.free_queue import PredictiveFreeQueue


class ClaimableBlock(Block, Protocol):
    """What claims use of vLLM's KVCacheBlock."""

    ref_cnt: int


class ClaimedFreeQueue:
    """Stands in for vLLM's FreeKVCacheBlockQueue, with the same methods, before another one."""

    def __init__(self, behind: PredictiveFreeQueue, pool_blocks: int) -> None:
        self.behind = behind
        self.make_room: Callable[[int], None] = lambda blocks: None
        """Called when so many blocks are wanted of the queue behind and it has fewer: whoever keeps
        the claims releases some."""
        self._pool_blocks = pool_blocks
        self._claimed: dict[str, tuple[list[Block], list[object]]] = {}
        """The blocks of each session's claim, in the order of its prompt, and the names of the
        contents that they had."""
        self._claims_on: dict[int, int] = {}
        """How many claims each claimed block has."""
        self._held: dict[int, Block] = {}
        """Claimed blocks that no request uses."""
        self._skip_remove()

    # ---- claims ---------------------------------------------------------------------------------

    @property
    def protected(self) -> int:
        """Distinct blocks that claims protect, in use or not."""
        return len(self._claims_on)

    @property
    def held(self) -> int:
        """Those that no request uses; safe to ask from another thread."""
        return len(self._held)

    @property
    def active(self) -> int:
        """Blocks that requests use and no claim protects."""
        return self._pool_blocks - self.behind.num_free_blocks - self.protected

    def claimable(self, blocks: Sequence[ClaimableBlock], room: int) -> tuple[list[Block], int]:
        """The leading blocks of which at most `room` are of no claim yet, and how many are."""
        claims_on, fresh = self._claims_on, 0
        for i, block in enumerate(blocks):
            if block.block_id not in claims_on:
                if fresh == room:
                    return list(blocks[:i]), fresh
                fresh += 1
        return list(blocks), fresh

    def unclaimed_use(self, blocks: Iterable[ClaimableBlock]) -> int:
        """How many of these only their one request uses: they go behind when it frees them."""
        claims_on = self._claims_on
        return len([None for b in blocks if b.ref_cnt == 1 and b.block_id not in claims_on])

    def claim(self, session: str, blocks: list[Block]) -> None:
        """These blocks, in use and about to be freed, are of the session's claim now."""
        assert session not in self._claimed
        self._claimed[session] = blocks, [block.block_hash for block in blocks]
        claims_on, ids = self._claims_on, [block.block_id for block in blocks]
        others = {i: claims_on[i] for i in ids if i in claims_on}
        claims_on.update(dict.fromkeys(ids, 1))
        for block_id, claims in others.items():
            claims_on[block_id] = claims + 1
        self._skip_remove()

    def is_resident(self, session: str) -> bool:
        """Whether all blocks of the session's claim have the content that they had."""
        blocks, contents = self._claimed[session]
        return [block.block_hash for block in blocks] == contents

    def release(self, session: str) -> None:
        """The session's claim has ended."""
        cached: list[Block] = []
        without_content: list[Block] = []
        claims_on, held = self._claims_on, self._held
        for block in reversed(self._claimed.pop(session)[0]):
            block_id = block.block_id
            claims = claims_on.pop(block_id)
            if claims > 1:
                claims_on[block_id] = claims - 1
            elif held.pop(block_id, None) is not None:
                (without_content if block.block_hash is None else cached).append(block)
        self.behind.prepend_n(without_content)
        self.behind.append_n(cached)
        self._skip_remove()

    # ---- vLLM's interface -----------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        return self.behind.num_free_blocks + len(self._held)

    def popleft(self) -> Block:
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Block]:
        behind = self.behind
        if n <= behind.num_free_blocks:
            return behind.popleft_n(n)
        assert n <= self.num_free_blocks
        # All others go before any claimed one, also before those of a claim that is now broken.
        taken = behind.popleft_n(behind.num_free_blocks)
        self.make_room(n - len(taken))
        return taken + behind.popleft_n(n - len(taken))

    def remove(self, block: Block) -> None:
        if self._held.pop(block.block_id, None) is None:
            self.behind.remove(block)

    def append(self, block: Block) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[Block]) -> None:
        self.behind.append_n(self._hold_claimed(blocks))

    def prepend_n(self, blocks: list[Block]) -> None:
        """Blocks without content. A claimed one has lost it, by the engine's order: it is held all
        the same, so that the claim is told at its end that its blocks were gone."""
        self.behind.prepend_n(self._hold_claimed(blocks))

    def get_all_free_blocks(self) -> list[Block]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Those behind in their order, then the held ones, longest held first."""
        held = iter(self._held.values())
        if cursor is None or cursor.block_id not in self._held or self.behind.reuse.can_rank:
            return chain(self.behind.iter_blocks_after(cursor), held)
        for block in held:
            if block is cursor:
                break
        return held

    # ---- steps ----------------------------------------------------------------------------------

    def _hold_claimed(self, blocks: list[Block]) -> list[Block]:
        """Keeps those back that are of a claim; the others, in their order."""
        claims_on = self._claims_on
        if not claims_on:
            return blocks
        unclaimed = []
        for block in blocks:
            if block.block_id in claims_on:
                self._held[block.block_id] = block
            else:
                unclaimed.append(block)
        return unclaimed

    def _skip_remove(self) -> None:
        """A prefix hit removes its blocks one by one: without claims it calls the queue behind."""
        if self._claimed:
            self.__dict__.pop("remove", None)
        else:
            self.__dict__["remove"] = self.behind.remove
