"""Room: the blocks of the pool that may be handed out without harm to an active session.

A free block is held while an active session owns it; a block of several sessions is held until the
last active one of them is parked. Made anew for each decision, from the free queue's groups; each
session that enters or is parked costs O(its own groups).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cachewise_engine_hook.block_groups import Group


class Room:
    """The room that is left while `active` changes."""

    def __init__(self, free_blocks: int, groups_of: Callable[[str], Collection[Group]]) -> None:
        """groups_of: the groups of free blocks that a session has a part in."""
        self.blocks = free_blocks
        """The room in blocks; below 0 when running requests will need more than there is."""
        self._groups_of = groups_of
        self._holders: dict[Group, int] = {}
        """How many active sessions have a part in a group."""
        self._held: dict[Group, int] = {}
        """Blocks of the groups that have holders; a claim that is broken meanwhile adds to none."""
        self._claimed: dict[str, int] = {}

    def add(self, session: str, blocks: int) -> None:
        """More blocks of a session that is not active: those that its claim protects."""
        self.blocks += blocks
        self._claimed[session] = self._claimed.get(session, 0) + blocks

    def has(self, session: str) -> bool:
        """Whether the session owns a free block."""
        return bool(self._groups_of(session)) or session in self._claimed

    def enters(self, session: str) -> None:
        """The session becomes active: what it owns is held now."""
        holders = self._holders
        for group in self._groups_of(session):
            others = holders.get(group, 0)
            holders[group] = others + 1
            if not others:
                held = self._held[group] = len(group.blocks)
                self.blocks -= held
        if self._claimed:
            self.blocks -= self._claimed.get(session, 0)

    def leaves(self, session: str) -> None:
        """The session is parked: what only it held may be handed out."""
        holders = self._holders
        for group in self._groups_of(session):
            if known := holders.get(group, 0):
                holders[group] = known - 1
                if known == 1:
                    self.blocks += self._held[group]
        if self._claimed:
            self.blocks += self._claimed.get(session, 0)
