"""Groups of free blocks: those of one set of owners, the sessions whose requests have used them.

Within a group what was used longest ago goes first, and of one request's blocks the tail before the
head, in whatever order they came back (a KV connector keeps some of them for a while).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Protocol

from cachewise_engine_hook.sessions import is_everybodys


class Block(Protocol):
    """What the queue uses of vLLM's KVCacheBlock."""

    block_id: int
    prev_free_block: Block | None
    next_free_block: Block | None

    @property
    def block_hash(self) -> object | None: ...


class Group:
    """The free blocks of one set of owners."""

    __slots__ = (
        "_is_in_order",
        "_last_place",
        "_victims",
        "blocks",
        "bound",
        "everybodys",
        "listed",
        "owners",
    )

    def __init__(self, owners: frozenset[str]) -> None:
        self.owners = owners
        self.everybodys = is_everybodys(owners)
        self.blocks: dict[int, Block] = {}
        """By id, nearly always in the order of eviction."""
        self.listed = 0
        """Ascends with the moment when it last came to hold a block."""
        self.bound = 0
        """The number of its last bound in ranking.py."""
        self._is_in_order, self._last_place = True, 0
        self._victims: list[Block] | None = None
        """The next victim last; among them may be blocks that have left the group meanwhile."""

    def begin_anew(self, listed: int) -> None:
        """It is empty, and is about to be filled."""
        self.listed = listed
        self._is_in_order, self._last_place, self._victims = True, 0, None

    def add(self, block: Block, place: int) -> None:
        """place: ascends in the order of eviction, and nearly always from call to call too."""
        self.blocks[block.block_id] = block
        self._victims = None
        if place < self._last_place:
            self._is_in_order = False
        self._last_place = place

    def take(self, n: int, places: list[int]) -> list[Block]:
        """Removes the next n victims, or all if there are fewer. places: of all blocks, by id."""
        if (victims := self._victims) is None:
            victims = self._victims = self.in_order(places)
            victims.reverse()
        blocks, taken = self.blocks, list[Block]()
        while len(taken) < n and blocks:
            block = victims.pop()
            if blocks.pop(block.block_id, None) is not None:
                taken.append(block)
        return taken

    def in_order(self, places: list[int]) -> list[Block]:
        """The blocks in the order of eviction."""
        if not self._is_in_order:
            in_order = sorted(self.blocks.items(), key=lambda item: places[item[0]])
            self.blocks = dict(in_order)
            self._is_in_order = True
            self._last_place = places[in_order[-1][0]] if in_order else 0
        return list(self.blocks.values())


class Groups:
    """The groups that hold a block, by their owners and by each of them."""

    def __init__(self) -> None:
        self.by_owners: dict[frozenset[str], Group] = {}
        self._of: dict[str, dict[Group, None]] = {}
        self._listings = 0

    def of(self, owner: str) -> Collection[Group]:
        """Those that the owner has a part in."""
        return self._of.get(owner, ())

    def owners(self) -> AbstractSet[str]:
        """All that have a part in one."""
        return self._of.keys()

    def add(self, group: Group) -> None:
        """It is empty, and about to be filled; none of the same owners is here."""
        self._listings += 1
        group.begin_anew(self._listings)
        self.by_owners[group.owners] = group
        for owner in group.owners:
            self._of.setdefault(owner, {})[group] = None

    def remove(self, group: Group) -> None:
        """It is empty."""
        del self.by_owners[group.owners]
        for owner in group.owners:
            of_owner = self._of[owner]
            del of_owner[group]
            if not of_owner:
                del self._of[owner]

    def clear(self) -> None:
        self.by_owners.clear()
        self._of.clear()
