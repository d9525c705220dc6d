"""Room: the blocks of the pool that may be handed out without harm to an active session.

A free block is held while an active session owns it; a block of several sessions is held until the
last active one of them is parked. Made anew for each decision, from the free queue's groups, at
O(their number); each session that enters or is parked then costs O(its own groups).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from cachewise_engine_hook.block_groups import Group, Groups


class Room:
    """The room that is left while `active` changes."""

    def __init__(self, free_blocks: int, groups: Groups) -> None:
        """groups: of the free blocks, by their owners."""
        self.blocks = free_blocks
        """The room in blocks; below 0 when running requests will need more than there is."""
        self._groups = groups
        self._active: set[str] = set()
        self._claimed: dict[str, int] = {}
        self._sizes: dict[Group, int] | None = None
        """Blocks of the groups where there are claims: one broken meanwhile adds to no group."""

    def add(self, session: str, blocks: int) -> None:
        """Before begin: more blocks of a session, those that its claim protects."""
        self.blocks += blocks
        self._claimed[session] = self._claimed.get(session, 0) + blocks

    def owners_among(self, sessions: set[str]) -> set[str]:
        """Those of them that own a free block."""
        return (sessions & self._groups.owners()) | (sessions & self._claimed.keys())

    def begin(self, active: AbstractSet[str]) -> None:
        """These are active, where nobody was yet: O(groups)."""
        self._active = set(active)
        groups, is_free_of = self._groups.by_owners.values(), self._active.isdisjoint
        self.blocks -= sum([len(g.blocks) for g in groups if not is_free_of(g.owners)])
        if self._claimed:
            self._sizes = {group: len(group.blocks) for group in groups}
            self.blocks -= sum([n for s, n in self._claimed.items() if s in active])

    def enters(self, session: str) -> None:
        """The session becomes active: what it owns is held now."""
        self.blocks -= self._alone(session)
        self._active.add(session)

    def leaves(self, session: str) -> None:
        """The session is parked: what only it held may be handed out."""
        self._active.discard(session)
        self.blocks += self._alone(session)

    def _alone(self, session: str) -> int:
        """Blocks that the session owns and no active one."""
        groups, is_free_of = self._groups.of(session), self._active.isdisjoint
        alone = [group for group in groups if is_free_of(group.owners)]
        if self._sizes is None:
            return sum([len(group.blocks) for group in alone])
        return sum([self._sizes.get(g, 0) for g in alone]) + self._claimed.get(session, 0)
