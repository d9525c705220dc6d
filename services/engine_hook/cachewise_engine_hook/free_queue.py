"""The predictive free queue: vLLM's free list, which can also hand out blocks by forecast.

It keeps vLLM's own order, least recently used first, as a doubly linked list through the blocks,
and beside it the same cached blocks in groups. A group holds the free blocks of one set of owners:
the sessions whose requests have used them. Blocks without content come first, as in stock vLLM.
Then, if any idle session has a forecast, the victim is the group that is wanted last; a group is
wanted as soon as the first of its owners returns. Within a group what was used longest ago goes
first, and of one request's blocks the tail before the head, in whatever order they came back (a KV
connector keeps some of them for a while).

Why an ancestor never goes before its descendant: whoever used a block also used all its ancestors,
so an ancestor's owners include its descendant's; the minimum over more owners is never later, and
ties go to the group with fewer owners. (Only a prompt that was everybody's and that nobody has used
for ten minutes may go before what hangs on it.)

Without any forecast the linked list decides alone: the order is stock vLLM's, block for block.

Handing out n blocks costs O(n) plus, once per step, sorting the groups (a few per session).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from cachewise_engine_hook.room import Room
from cachewise_engine_hook.sessions import anonymous_owner, everybodys_owner, is_everybodys

MAX_OWNERS = 16
"""A block of more sessions than this is everybody's, like a system prompt (sessions.py)."""


_NOBODY = frozenset(("-",))
"""Owner of superseded blocks. No session has this key, so they are never wanted."""


class Block(Protocol):
    """What the queue uses of vLLM's KVCacheBlock."""

    block_id: int
    prev_free_block: Block | None
    next_free_block: Block | None

    @property
    def block_hash(self) -> object | None: ...


class Reuse(Protocol):
    """What the queue asks of the session table."""

    @property
    def can_rank(self) -> bool: ...

    def time_to_reuse(self, key: str, now: float) -> float: ...


class _End:
    """A sentinel of the linked list; has the two links that every block has."""

    block_id = -1
    block_hash = None

    def __init__(self) -> None:
        self.prev_free_block: Block | None = None
        self.next_free_block: Block | None = None


class _Group:
    """The free blocks of one set of owners, the next victim first once put_in_order was called."""

    __slots__ = ("_is_in_order", "_last_place", "blocks", "owners")

    def __init__(self, owners: frozenset[str]) -> None:
        self.owners = owners
        self.blocks: OrderedDict[int, Block] = OrderedDict()
        self._is_in_order, self._last_place = True, 0

    def add(self, block: Block, place: int) -> None:
        """place: ascends in the order of eviction, and nearly always from call to call too."""
        self.blocks[block.block_id] = block
        self._is_in_order &= place >= self._last_place
        self._last_place = place

    def put_in_order(self, places: list[int]) -> None:
        """places: of all blocks, by block id."""
        if not self._is_in_order and self.blocks:
            in_order = sorted(self.blocks.items(), key=lambda item: places[item[0]])
            self.blocks = OrderedDict(in_order)
            self._is_in_order, self._last_place = True, places[in_order[-1][0]]

    def wanted_in(self, reuse: Reuse, now: float) -> float:
        return min(reuse.time_to_reuse(owner, now) for owner in self.owners)


class PredictiveFreeQueue:
    """Stands in for vLLM's FreeKVCacheBlockQueue, with the same methods.

    The scheduler calls begin_step once per step, and claim before a request's blocks are freed.
    """

    def __init__(self, blocks: list[Block], num_blocks: int, reuse: Reuse) -> None:
        """blocks: the free blocks in eviction order; num_blocks: the size of the whole pool."""
        self.num_free_blocks = 0
        self.evicted_by_forecast = 0
        self.evicted_in_stock_order = 0
        self.reuse = reuse
        self.on_evicted: Callable[[frozenset[str], int, str], None] | None = None
        """Called with owners, blocks and the order, "forecast" or "stock", that chose them."""
        self._losers: set[frozenset[str]] = set()
        self._now = 0.0
        self._head: Block = _End()
        self._tail: Block = _End()
        self._head.next_free_block, self._tail.prev_free_block = self._tail, self._head
        # The owners' group of each block that has had an owner since its content was written.
        self._group_of: list[_Group | None] = [None] * num_blocks
        self._groups: dict[frozenset[str], _Group] = {}
        """Only groups that hold a block."""
        self._uses = 0
        self._places = [0] * num_blocks
        """Place of each block in its group: by the last use, and within one tail first."""
        self._ranking: list[_Group] | None = None
        for block in blocks:
            block.prev_free_block = None
        self._link(blocks, self._head)

    def begin_step(self, now: float) -> None:
        """Ranks are made anew, for this moment, when they are next needed."""
        self._now = now
        self._ranking = None

    def claim(self, owner: str, blocks: Iterable[Block]) -> None:
        """These blocks hold a prefix of the owner's, in the order of its prompt; they are in use,
        about to be freed."""
        known: dict[int, _Group] = {}
        self._uses += 1
        place = self._uses << 32
        for depth, block in enumerate(blocks):
            self._places[block.block_id] = place - depth
            group = self._group_of[block.block_id]
            if (claimed := known.get(id(group))) is None:
                claimed = known[id(group)] = self._group_with(group, owner)
            self._group_of[block.block_id] = claimed

    def free_blocks_of(self, owner: str) -> int:
        """Free blocks that are the owner's alone."""
        group = self._groups.get(frozenset((owner,)))
        return len(group.blocks) if group is not None else 0

    def supersede(self, owner: str) -> None:
        """The free blocks that are the owner's alone are of no prompt of its any more.

        They go first, like those of sessions that have ended. O(their number).
        """
        group = self._groups.get(frozenset((owner,)))
        if group is None:
            return
        blocks, group.blocks = group.blocks, OrderedDict()
        self._drop_if_empty(group)
        aside = self._interned(_NOBODY)
        aside.blocks.update(blocks)
        for block_id in blocks:
            self._group_of[block_id] = aside
        self._ranking = None

    def take_losers(self) -> set[frozenset[str]]:
        """The owners whose blocks have been handed out since this was last asked."""
        losers, self._losers = self._losers, set()
        return losers

    def block_counts(self) -> dict[str, int]:
        """Blocks in use, free with content, and free without; safe to ask from another thread."""
        cached = sum(len(g.blocks) for g in list(self._groups.values()))
        free = self.num_free_blocks
        return {"used": len(self._group_of) - free, "cached": cached, "free": free - cached}

    def room(self) -> Room:
        """All free blocks, and whose they are; nobody is active yet."""
        groups = self._groups.values()
        return Room(self.num_free_blocks, ((g.owners, len(g.blocks)) for g in groups if g.blocks))

    def forget_contents(self) -> None:
        """All blocks have lost their content (vLLM's reset_prefix_cache), and so their owners."""
        self._groups.clear()
        self._group_of = [None] * len(self._group_of)
        self._ranking = None

    # ---- vLLM's interface -----------------------------------------------------------------------

    def popleft(self) -> Block:
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Block]:
        assert self.num_free_blocks >= n
        taken: list[Block] = []
        self._take_without_content(n, taken)
        if len(taken) < n and self.reuse.can_rank:
            self._take_by_forecast(n, taken)
        self._take_in_stock_order(n, taken)
        return taken

    def remove(self, block: Block) -> None:
        """Takes a block out of the queue that is about to be used again, by a prefix hit."""
        if block.prev_free_block is None or block.next_free_block is None:
            raise RuntimeError(f"remove() called on an invalid block: {block}")
        self._unlink(block)
        if (group := self._group_of[block.block_id]) is not None:
            del group.blocks[block.block_id]
            self._drop_if_empty(group)

    def append(self, block: Block) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[Block]) -> None:
        """Cached blocks, in eviction order."""
        if not blocks:
            return
        assert self._tail.prev_free_block is not None
        for block in self._link(blocks, self._tail.prev_free_block):
            group = self._group_of[block.block_id]
            if group is None:
                owners = frozenset((anonymous_owner(self._now),))
                group = self._group_of[block.block_id] = self._interned(owners)
                self._places[block.block_id] = self._uses << 32
            elif not group.blocks:
                group = self._group_of[block.block_id] = self._interned(group.owners)
            group.add(block, self._places[block.block_id])
        self._ranking = None

    def prepend_n(self, blocks: list[Block]) -> None:
        """Blocks without content: nobody's, and the first to be handed out."""
        for block in self._link(blocks, self._head):
            self._group_of[block.block_id] = None

    def get_all_free_blocks(self) -> list[Block]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """The free blocks in eviction order: in stock vLLM's those after the cursor, and all where
        forecasts decide, since what came before the cursor a step ago may come after it now."""
        if cursor is None or self.reuse.can_rank:
            yield from self._in_eviction_order()
            return
        block = cursor.next_free_block
        while block is not self._tail and block is not None:
            yield block
            block = block.next_free_block

    # ---- steps ----------------------------------------------------------------------------------

    def _take_without_content(self, n: int, taken: list[Block]) -> None:
        """Blocks of no group are always a run at the head of the list (see prepend_n)."""
        block = self._head.next_free_block
        while len(taken) < n and block is not self._tail:
            assert block is not None
            if self._group_of[block.block_id] is not None:
                return
            following = block.next_free_block
            self._unlink(block)
            taken.append(block)
            block = following

    def _take_by_forecast(self, n: int, taken: list[Block]) -> None:
        ranking = self._ranked()
        while len(taken) < n and ranking:
            group, before = ranking[-1], len(taken)
            self._losers.add(group.owners)
            group.put_in_order(self._places)
            while len(taken) < n and group.blocks:
                _, block = group.blocks.popitem(last=False)
                self.evicted_by_forecast += block.block_hash is not None
                self._unlink(block)
                self._group_of[block.block_id] = None
                taken.append(block)
            if not group.blocks:
                ranking.pop()
                self._drop_if_empty(group)
            if self.on_evicted is not None:
                self.on_evicted(group.owners, len(taken) - before, "forecast")

    def _take_in_stock_order(self, n: int, taken: list[Block]) -> None:
        taken_of: Counter[frozenset[str]] = Counter()
        while len(taken) < n:
            block = self._head.next_free_block
            assert block is not None
            self.evicted_in_stock_order += block.block_hash is not None
            group = self._group_of[block.block_id]
            if group is not None:
                self._losers.add(group.owners)
                taken_of[group.owners] += 1
            taken.append(self._take(block))
        if self.on_evicted is not None:
            for owners, blocks in taken_of.items():
                self.on_evicted(owners, blocks, "stock")

    def _ranked(self) -> list[_Group]:
        """The groups, the next victim last."""
        if self._ranking is None:
            self._ranking = sorted(self._groups.values(), key=self._rank)
        return self._ranking

    def _rank(self, group: _Group) -> tuple[float, float]:
        owners = math.inf if is_everybodys(group.owners) else len(group.owners)
        return (group.wanted_in(self.reuse, self._now), -owners)

    def _in_eviction_order(self) -> Iterator[Block]:
        block = self._head.next_free_block
        ranked = self.reuse.can_rank
        while block is not self._tail and block is not None:
            if ranked and self._group_of[block.block_id] is not None:
                break
            yield block
            block = block.next_free_block
        if ranked:
            for group in reversed(self._ranked()):
                group.put_in_order(self._places)
                yield from group.blocks.values()

    def _take(self, block: Block) -> Block:
        """Takes a block out of list and group; its content, and so its owners, are gone."""
        self._unlink(block)
        group = self._group_of[block.block_id]
        if group is not None:
            del group.blocks[block.block_id]
            self._group_of[block.block_id] = None
            self._drop_if_empty(group)
        return block

    def _group_with(self, group: _Group | None, owner: str) -> _Group:
        """The group of the same blocks once the owner has used them too.

        An empty one is not listed in _groups before append_n puts a block into it: many a block
        is freed without content, and the list must not grow by what it never holds.
        """
        if group is not None and owner in group.owners:
            return group
        owners = group.owners | {owner} if group is not None else frozenset((owner,))
        if len(owners) > MAX_OWNERS or (group is not None and is_everybodys(group.owners)):
            owners = frozenset((everybodys_owner(self._now),))
        return self._groups.get(owners) or _Group(owners)

    def _interned(self, owners: frozenset[str]) -> _Group:
        group = self._groups.get(owners)
        if group is None:
            group = self._groups[owners] = _Group(owners)
        return group

    def _drop_if_empty(self, group: _Group) -> None:
        # Blocks in use may still name the group; append_n finds its successor by its owners.
        if not group.blocks and self._groups.get(group.owners) is group:
            del self._groups[group.owners]

    def _link(self, blocks: list[Block], after: Block) -> list[Block]:
        """Puts the blocks into the list; gives those that were not in it already."""
        before, linked = after.next_free_block, []
        assert before is not None
        for block in blocks:
            if block.prev_free_block is None:
                block.prev_free_block, after.next_free_block = after, block
                after = block
                linked.append(block)
        after.next_free_block, before.prev_free_block = before, after
        self.num_free_blocks += len(linked)
        return linked

    def _unlink(self, block: Block) -> None:
        prev, following = block.prev_free_block, block.next_free_block
        assert prev is not None and following is not None
        prev.next_free_block, following.prev_free_block = following, prev
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1
