"""What the policies put into vLLM's scheduler: a policy says the order, these keep the lists.

    OrderedQueue        waiting requests, in the order of any key
    OrderedFreeQueue    free blocks, in any order of eviction (EvictionOrder)
    rank_by_session     the product's free queue, with another opinion of when a session returns

The last two learn whose blocks are freed: `claim` is called with a request's blocks, in the order
of its prompt, before vLLM gives them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from cachewise_engine_hook.block_groups import Group
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.ranking import Ranking, Reuse


def resident_blocks(engine: Any, request: Any) -> int:
    """Blocks of the request's resident prefix, by a binary search for its end."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    hashes, low, high = request.block_hashes, 0, len(request.block_hashes)
    while low < high:
        middle = (low + high + 1) // 2
        if pool.get_cached_block(hashes[middle - 1], [0]):
            low = middle
        else:
            high = middle - 1
    return low


class OrderedQueue:
    """A vLLM RequestQueue: preempted requests, then by key (smallest first), then by arrival.

    Keys are asked for once per step and request: begin_step forgets them.
    """

    def __init__(
        self,
        key: Callable[[Any], Any] = lambda request: 0,
        is_eligible: Callable[[Any], bool] = lambda request: True,
    ) -> None:
        """is_eligible: whether the request may be admitted now; the queue is "empty" when none
        may."""
        self._key, self._is_eligible = key, is_eligible
        self._requests: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}

    def begin_step(self) -> None:
        self._keys.clear()

    def add_request(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def peek_request(self) -> Any:
        eligible = filter(self._is_eligible, self._requests.values())
        first = min(eligible, key=self._place, default=None)
        if first is None:
            raise IndexError("peek from an empty queue")
        return first

    def pop_request(self) -> Any:
        return self._requests.pop(self.peek_request().request_id)

    def prepend_request(self, request: Any) -> None:
        """A preempted request, or one that was popped and could not be scheduled."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Any) -> None:
        del self._requests[request.request_id]

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self._requests.pop(request.request_id, None)

    def __bool__(self) -> bool:
        return any(map(self._is_eligible, self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._requests.values(), key=self._place))

    def _place(self, request: Any) -> tuple[Any, ...]:
        if request.num_preemptions:
            return (0, 0, request.arrival_time, request.request_id)
        name = request.request_id
        if name not in self._keys:
            self._keys[name] = self._key(request)
        return (1, self._keys[name], request.arrival_time, name)


class EvictionOrder(Protocol):
    """In which order free blocks with content go. Blocks come in and out many at a time, so each
    method must be cheap; pop is only called when there is a block."""

    def claim(self, session: str, blocks: list[Any]) -> None:
        """The session's request used these blocks, from the head of its prompt on."""

    def add(self, block: Any) -> None:
        """Nobody uses the block any more."""

    def discard(self, block: Any) -> None:
        """The block is used again."""

    def pop(self) -> Any:
        """The next victim; its content is lost."""


class OrderedFreeQueue:
    """Stands in for vLLM's FreeKVCacheBlockQueue: blocks without content first, as in vLLM."""

    def __init__(self, blocks: Iterable[Any], order: EvictionOrder) -> None:
        self.order = order
        self._empty = deque(blocks)
        self._cached = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._empty) + self._cached

    def claim(self, session: str, blocks: Iterable[Any]) -> None:
        self.order.claim(session, [b for b in blocks if b.block_hash is not None])

    def popleft_n(self, n: int) -> list[Any]:
        taken = [self._empty.popleft() for _ in range(min(n, len(self._empty)))]
        while len(taken) < n:
            taken.append(self.order.pop())
            self._cached -= 1
        return taken

    def remove(self, block: Any) -> None:
        """Takes out a block that a prefix hit is about to use again."""
        self.order.discard(block)
        self._cached -= 1

    def append_n(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.order.add(block)
        self._cached += len(blocks)

    def prepend_n(self, blocks: list[Any]) -> None:
        self._empty.extendleft(reversed(blocks))


def order_blocks(scheduler: Any, order: EvictionOrder) -> None:
    """Puts the order into the scheduler's block pool."""
    pool = scheduler.kv_cache_manager.block_pool
    _install(scheduler, OrderedFreeQueue(pool.free_block_queue.get_all_free_blocks(), order))


class SortedRanking(Ranking):
    """All groups sorted, once for as long as nobody says that ranks have changed."""

    _order: list[Group] | None = None

    def begin_anew(self) -> None:
        self._order = None

    def listed(self, group: Group) -> None:
        self._order = None

    def unlisted(self, group: Group) -> None:
        """An empty group in the order is skipped."""

    def changed(self, owner: str) -> None:
        self._order = None

    def victim(self, reuse: Reuse, now: float) -> Group | None:
        if self._order is None:
            self._order = list(reversed(list(self.in_order(reuse, now))))
        while self._order and not self._order[-1].blocks:
            self._order.pop()
        return self._order[-1] if self._order else None


def rank_by_session(scheduler: Any, reuse: Reuse) -> PredictiveFreeQueue:
    """Puts the product's free queue into the scheduler's block pool."""
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.free_block_queue.get_all_free_blocks()
    queue = PredictiveFreeQueue(free, pool.num_gpu_blocks, reuse, SortedRanking)
    _install(scheduler, queue)
    return queue


def _install(scheduler: Any, queue: PredictiveFreeQueue | OrderedFreeQueue) -> None:
    manager, free = scheduler.kv_cache_manager, scheduler._free_request_blocks

    def claim_and_free(request: Any) -> Any:
        groups = manager.get_blocks(request.request_id).blocks
        blocks = (block for group in groups for block in group if not block.is_null)
        queue.claim(request.session_id, blocks)
        return free(request)

    scheduler._free_request_blocks = claim_and_free
    manager.block_pool.free_block_queue = queue
