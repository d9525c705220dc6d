"""Room: the blocks of the pool that may be handed out without harm to an active session.

A free block is held while an active session owns it; a block of several sessions is held until the
last active one of them is parked. Made anew for each decision from the free queue's groups; within
a decision each session that enters or is parked costs O(its own groups), not O(all groups).
"""

from __future__ import annotations

from collections.abc import Iterable


class Room:
    """The room that is left while `active` changes."""

    def __init__(self, free_blocks: int, held: Iterable[tuple[frozenset[str], int]]) -> None:
        """held: for each set of owners how many of the free blocks are theirs."""
        self.blocks = free_blocks
        """The room in blocks; below 0 when running requests will need more than there is."""
        self._alone: dict[str, int] = {}
        self._shared: dict[str, list[_Shared]] = {}
        for owners, blocks in held:
            if len(owners) == 1:
                (owner,) = owners
                self._alone[owner] = self._alone.get(owner, 0) + blocks
            else:
                shared = _Shared(blocks)
                for owner in owners:
                    self._shared.setdefault(owner, []).append(shared)

    def add(self, session: str, blocks: int) -> None:
        """More blocks of a session that is not active: those that its claim protects."""
        self.blocks += blocks
        self._alone[session] = self._alone.get(session, 0) + blocks

    def has(self, session: str) -> bool:
        """Whether the session owns a free block."""
        return session in self._alone or session in self._shared

    def enters(self, session: str) -> None:
        """The session becomes active: what it owns is held now."""
        self.blocks -= self._alone.get(session, 0)
        for shared in self._shared.get(session, ()):
            self.blocks -= 0 if shared.holders else shared.blocks
            shared.holders += 1

    def leaves(self, session: str) -> None:
        """The session is parked: what only it held may be handed out."""
        self.blocks += self._alone.get(session, 0)
        for shared in self._shared.get(session, ()):
            shared.holders -= 1
            self.blocks += 0 if shared.holders else shared.blocks


class _Shared:
    """Blocks of several sessions."""

    __slots__ = ("blocks", "holders")

    def __init__(self, blocks: int) -> None:
        self.blocks, self.holders = blocks, 0
