"""Two answers of vLLM's that the replay knows without asking, since nothing they depend on changed.

    find_longest_cache_hit    of the request at the head of the queue, which vLLM looks up at every
                              step until it fits: the walk goes on where the pool has changed
    allocate_slots            of a request that has its blocks, none of them newly full, as in 14
                              of 16 decode steps: nothing is allocated and nothing is cached

No decision changes: a test compares replays with and without. They hold for one KV cache group of
full attention, the replay's. The scheduler's measured CPU time is shorter by them.
"""

from __future__ import annotations

from typing import Any


class _Hit(list[Any]):
    """The resident blocks of a chain, from its first block on."""

    evictable: int | None = None
    """How many of them no request uses, once somebody has asked."""

    def __getitem__(self, place: Any) -> Any:
        # vLLM passes the whole as blocks[0:], which would be a copy.
        if isinstance(place, slice) and not place.start and place.stop is place.step is None:
            return self
        return super().__getitem__(place)


class _LastLookUp:
    """The chain that was looked up last, and how much of it is resident."""

    def __init__(self, pool: Any, block_size: int) -> None:
        self._pool, self._block_size = pool, block_size
        self._hashes: Any = None
        self._hit = _Hit()
        self._watch()

    def find(self, hashes: list[bytes], max_tokens: int) -> tuple[tuple[_Hit], int, int]:
        """In place of the coordinator's find_longest_cache_hit."""
        most = max_tokens // self._block_size
        if hashes is not self._hashes or len(self._hit) > most:
            self._hashes, self._hit = hashes, _Hit()
        hit, known = self._hit, len(self._hit)
        for i in range(known, most):
            found = self._pool.get_cached_block(hashes[i], (0,))
            if found is None:
                break
            hit.append(found[0])
        if len(hit) > known:
            hit.evictable = None
        return (hit,), len(hit) * self._block_size, 0

    def evictable(self, blocks: Any) -> int:
        """In place of the manager's _get_num_evictable_blocks."""
        if blocks is not self._hit:
            return sum(block.ref_cnt == 0 for block in blocks)
        if blocks.evictable is None:
            blocks.evictable = sum(block.ref_cnt == 0 for block in blocks)
        return int(blocks.evictable)

    def forget(self) -> None:
        """The request fits: vLLM does not look it up again."""
        self._hashes, self._hit = None, _Hit()

    def _lose(self, blocks: list[Any]) -> None:
        """They are about to lose their content."""
        size = self._block_size
        for block in blocks:
            if tokens := block.block_hash_num_tokens:
                place = tokens // size - 1
                if place < len(self._hit) and self._hit[place] is block:
                    # Another list: vLLM may still hold the one that it was given.
                    self._hit = _Hit(self._hit[:place])

    def _watch(self) -> None:
        """Blocks of the hit can lose their content, and get uses or lose them."""
        pool = self._pool
        take, touch, free = pool.free_block_queue.popleft_n, pool.touch, pool.free_blocks

        def watched_take(n: int) -> list[Any]:
            blocks: list[Any] = take(n)
            if self._hit:
                self._lose(blocks)
            return blocks

        def watched_touch(blocks: Any) -> None:
            self._hit.evictable = None
            touch(blocks)

        def watched_free(blocks: Any) -> None:
            self._hit.evictable = None
            free(blocks)

        pool.free_block_queue.popleft_n = watched_take
        pool.touch, pool.free_blocks = watched_touch, watched_free


def install(scheduler: Any) -> None:
    """Puts the shortcuts into a scheduler of one KV cache group of full attention."""
    kv_cache = scheduler.kv_cache_manager
    (manager,) = kv_cache.coordinator.single_type_managers
    last = _LastLookUp(kv_cache.block_pool, manager.block_size)
    kv_cache.coordinator.find_longest_cache_hit = last.find
    manager._get_num_evictable_blocks = last.evictable
    kv_cache.allocate_slots = _allocate_slots(kv_cache, manager, last)


def _allocate_slots(kv_cache: Any, manager: Any, last: _LastLookUp) -> Any:
    allocate, size = kv_cache.allocate_slots, manager.block_size
    blocks_of, cached_of = manager.req_to_blocks, manager.num_cached_block
    nothing_new = kv_cache.empty_kv_cache_blocks

    def allocate_slots(request: Any, num_new_tokens: int, *args: Any, **more: Any) -> Any:
        name, tokens = request.request_id, request.num_computed_tokens + num_new_tokens
        # Only running requests have a count of cached blocks; a waiting one has hits to adopt.
        full = min(tokens, request.num_tokens) // size
        if cached_of.get(name) == full and len(blocks_of[name]) * size >= tokens:
            return nothing_new
        allocated = allocate(request, num_new_tokens, *args, **more)
        if allocated is not None and more.get("new_computed_blocks") is not None:
            last.forget()
        return allocated

    return allocate_slots
