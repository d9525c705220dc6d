"""The predictive free queue: vLLM's free list, which can also hand out blocks by forecast.

It keeps vLLM's own order, least recently used first, as a doubly linked list through the blocks,
and beside it the same cached blocks in groups by their owners (block_groups.py). Blocks without
content come first, as in stock vLLM. Then, if any idle session has a forecast, the victim is the
group that is wanted last (ranking.py). A group is wanted when the first of its owners returns.

Why an ancestor never goes before its descendant: whoever used a block also used all its ancestors,
so an ancestor's owners include its descendant's; the minimum over more owners is never later, and
ties go to the group with fewer owners. (Only a prompt that was everybody's and that nobody has used
for ten minutes may go before what hangs on it.)

Without any forecast the linked list decides alone: the order is stock vLLM's, block for block.

Handing out n blocks costs O(n), and the ranking's cost, which does not depend on blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from cachewise_engine_hook.block_groups import Block, Group, Groups
from cachewise_engine_hook.ranking import Ranking, Reuse
from cachewise_engine_hook.room import Room
from cachewise_engine_hook.sessions import anonymous_owner, everybodys_owner

MAX_OWNERS = 16
"""A block of more sessions than this is everybody's, like a system prompt (sessions.py)."""


_NOBODY = frozenset(("-",))
"""Owner of superseded blocks. No session has this key, so they are never wanted."""


class _End:
    """A sentinel of the linked list; has the two links that every block has."""

    block_id = -1
    block_hash = None

    def __init__(self) -> None:
        self.prev_free_block: Block | None = None
        self.next_free_block: Block | None = None


class PredictiveFreeQueue:
    """Stands in for vLLM's FreeKVCacheBlockQueue, with the same methods.

    The scheduler calls begin_step once per step, and claim before a request's blocks are freed.
    """

    def __init__(
        self,
        blocks: list[Block],
        num_blocks: int,
        reuse: Reuse,
        ranking: type[Ranking] = Ranking,
    ) -> None:
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
        self._group_of: list[Group | None] = [None] * num_blocks
        self._groups = Groups()
        self._uses = 0
        self._places = [0] * num_blocks
        """Place of each block in its group: by the last use, and within one tail first."""
        self._ranking = ranking(self._groups)
        for block in blocks:
            block.prev_free_block = None
        self._link(blocks, self._head)

    def begin_step(self, now: float) -> None:
        """Ranks are from now on those of this moment."""
        self._now = now

    def ranks_changed(self, owner: str | None = None) -> None:
        """Its time to reuse may be longer than it was said: not by the passing of time, but by a
        forecast, or since it has gone away, ended, or been parked. None: that of any owner."""
        if owner is None:
            self._ranking.begin_anew()
        else:
            self._ranking.changed(owner)

    def claim(self, owner: str, blocks: Iterable[Block]) -> None:
        """These blocks hold a prefix of the owner's, in the order of its prompt; they are in use,
        about to be freed."""
        places, group_of = self._places, self._group_of
        known: dict[int, Group] = {}
        self._uses += 1
        place = self._uses << 32
        group = claimed = None
        is_first = True
        for block in blocks:
            block_id = block.block_id
            places[block_id] = place
            place -= 1
            if group_of[block_id] is not group or is_first:
                group, is_first = group_of[block_id], False
                if (claimed := known.get(id(group))) is None:
                    claimed = known[id(group)] = self._group_with(group, owner)
            if claimed is not group:
                group_of[block_id] = claimed

    def free_blocks_of(self, owner: str) -> int:
        """Free blocks that are the owner's alone."""
        group = self._groups.by_owners.get(frozenset((owner,)))
        return len(group.blocks) if group is not None else 0

    def supersede(self, owner: str) -> None:
        """The free blocks that are the owner's alone are of no prompt of its any more.

        They go first, like those of sessions that have ended. O(their number).
        """
        group = self._groups.by_owners.get(frozenset((owner,)))
        if group is None:
            return
        blocks = group.take(len(group.blocks), self._places)
        self._drop_if_empty(group)
        aside = self._interned(_NOBODY)
        for block in blocks:
            aside.add(block, 0)
            self._group_of[block.block_id] = aside

    def take_losers(self) -> set[frozenset[str]]:
        """The owners whose blocks have been handed out since this was last asked."""
        losers = self._losers
        if losers:
            self._losers = set()
        return losers

    def block_counts(self) -> dict[str, int]:
        """Blocks in use, free with content, and free without; safe to ask from another thread."""
        cached = sum(len(g.blocks) for g in list(self._groups.by_owners.values()))
        free = self.num_free_blocks
        return {"used": len(self._group_of) - free, "cached": cached, "free": free - cached}

    def room(self) -> Room:
        """All free blocks, and whose they are; nobody is active yet."""
        return Room(self.num_free_blocks, self._groups)

    def forget_contents(self) -> None:
        """All blocks have lost their content (vLLM's reset_prefix_cache), and so their owners."""
        self._groups.clear()
        self._group_of = [None] * len(self._group_of)
        self._ranking.begin_anew()

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
        # Called for each block of each hit: nothing is called from here.
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() called on an invalid block: {block}")
        before.next_free_block, after.prev_free_block = after, before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1
        block_id = block.block_id
        if (group := self._group_of[block_id]) is not None:
            del group.blocks[block_id]
            if not group.blocks:
                self._drop_if_empty(group)

    def append(self, block: Block) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[Block]) -> None:
        """Cached blocks, in eviction order."""
        if not blocks:
            return
        assert self._tail.prev_free_block is not None
        places, group_of = self._places, self._group_of
        known: Group | None = None
        for block in self._link(blocks, self._tail.prev_free_block):
            block_id = block.block_id
            if (owned := group_of[block_id]) is None or owned is not known:
                known, group = owned, self._group_to_fill(owned, block_id)
            if group is not owned:
                group_of[block_id] = group
            group.add(block, places[block_id])

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
        while len(taken) < n:
            group = self._ranking.victim(self.reuse, self._now)
            if group is None:
                return
            self._losers.add(group.owners)
            victims = group.take(n - len(taken), self._places)
            for block in victims:
                self.evicted_by_forecast += block.block_hash is not None
                self._unlink(block)
                self._group_of[block.block_id] = None
            taken += victims
            self._drop_if_empty(group)
            if self.on_evicted is not None:
                self.on_evicted(group.owners, len(victims), "forecast")

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

    def _in_eviction_order(self) -> Iterator[Block]:
        block = self._head.next_free_block
        ranked = self.reuse.can_rank
        while block is not self._tail and block is not None:
            if ranked and self._group_of[block.block_id] is not None:
                break
            yield block
            block = block.next_free_block
        if ranked:
            for group in self._ranking.in_order(self.reuse, self._now):
                yield from group.in_order(self._places)

    def _take(self, block: Block) -> Block:
        """Takes a block out of list and group; its content, and so its owners, are gone."""
        self._unlink(block)
        group = self._group_of[block.block_id]
        if group is not None:
            del group.blocks[block.block_id]
            self._group_of[block.block_id] = None
            self._drop_if_empty(group)
        return block

    def _group_to_fill(self, group: Group | None, block_id: int) -> Group:
        """The listed group for a block that is freed. group: what _group_of says of it."""
        if group is None:
            self._places[block_id] = self._uses << 32
            return self._interned(frozenset((anonymous_owner(self._now),)))
        # An empty one is not listed; blocks in use name it still. Another of its owners may be.
        return group if group.blocks else self._listed(group)

    def _group_with(self, group: Group | None, owner: str) -> Group:
        """The group of the same blocks once the owner has used them too.

        An empty one is not listed in _groups before append_n puts a block into it: many a block
        is freed without content, and the list must not grow by what it never holds.
        """
        if group is not None and owner in group.owners:
            return group
        owners = group.owners | {owner} if group is not None else frozenset((owner,))
        if len(owners) > MAX_OWNERS or (group is not None and group.everybodys):
            owners = frozenset((everybodys_owner(self._now),))
        return self._groups.by_owners.get(owners) or Group(owners)

    def _interned(self, owners: frozenset[str]) -> Group:
        return self._groups.by_owners.get(owners) or self._listed(Group(owners))

    def _listed(self, group: Group) -> Group:
        """The listed group of the same owners: this one, which is empty, if there is none."""
        if (listed := self._groups.by_owners.get(group.owners)) is not None:
            return listed
        self._groups.add(group)
        self._ranking.listed(group)
        return group

    def _drop_if_empty(self, group: Group) -> None:
        # Blocks in use may still name the group; append_n lists it again, or another one.
        if not group.blocks and self._groups.by_owners.get(group.owners) is group:
            self._groups.remove(group)
            self._ranking.unlisted(group)

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
