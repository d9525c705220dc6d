"""Blocks held for sessions that are away, so that nothing can evict them.

A pin is a reference to each block, vLLM's own way to keep it. The pool is then smaller for all
others: a request that does not fit waits until pins expire. Two cases cannot wait, and take the
latest pin away: a running request that needs a block, and a request when nothing else runs (a
deadlock).
"""

from __future__ import annotations

from typing import Any


class Pins:
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._held: dict[str, list[Any]] = {}
        """Blocks of each pinned session, the latest pin last."""
        self._until: dict[str, float] = {}
        self._let_through_what_cannot_wait()

    def __contains__(self, session: str) -> bool:
        return session in self._held

    def pin(self, request: Any, until: float) -> None:
        """Holds the resident chain of a request that has just finished, until that time."""
        blocks = []
        for block_hash in request.block_hashes:
            found = self._pool.get_cached_block(block_hash, [0])
            if found is None:
                break
            blocks += found
        self._pool.touch(blocks)
        self._held[request.session_id], self._until[request.session_id] = blocks, until

    def begin_step(self, now: float, returned: set[str]) -> None:
        """Lets go what has expired, unless the session is back and waits; and what is in use.

        returned: sessions that are not away.
        """
        for request in self._scheduler.running:
            self.unpin(request.session_id)
        for session in [s for s, until in self._until.items() if until <= now]:
            if session not in returned:
                self.unpin(session)

    def unpin(self, session: str) -> None:
        if (blocks := self._held.pop(session, None)) is not None:
            del self._until[session]
            self._pool.free_blocks(reversed(blocks))

    def _let_through_what_cannot_wait(self) -> None:
        manager = self._scheduler.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_or_unpin(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks, running = allocate(request, *args, **kwargs), self._scheduler.running
            while blocks is None and self._held and (not running or request in running):
                self.unpin(next(reversed(self._held)))
                blocks = allocate(request, *args, **kwargs)
            return blocks

        manager.allocate_slots = allocate_or_unpin
