"""The orders of eviction and of waiting, on blocks and requests made by hand."""

from __future__ import annotations

from dataclasses import dataclass

from cachewise_bench.policies.arc import AdaptiveOrder
from cachewise_bench.policies.queues import OrderedFreeQueue, OrderedQueue
from cachewise_bench.policies.rr_tail import RoundRobinTails
from cachewise_bench.policies.slru import SegmentedLru


@dataclass
class _Block:
    block_id: int
    block_hash: bytes | None = None


@dataclass
class _Request:
    request_id: str
    arrival_time: float
    num_preemptions: int = 0


def _blocks(*numbers: int) -> list[_Block]:
    return [_Block(n, f"content {n}".encode()) for n in numbers]


def test_blocks_without_content_go_first_and_the_last_freed_of_them_before_the_others() -> None:
    queue = OrderedFreeQueue([_Block(0)], SegmentedLru(10))
    cached, empty = _blocks(1, 2), _Block(3)
    queue.claim("a", cached)
    queue.append_n(cached)
    queue.prepend_n([empty])
    assert queue.num_free_blocks == 4
    assert [b.block_id for b in queue.popleft_n(3)] == [3, 0, 1]
    queue.remove(cached[1])
    assert queue.num_free_blocks == 0


def test_slru_evicts_what_was_used_once_before_what_was_used_twice() -> None:
    order, blocks = SegmentedLru(10), _blocks(1, 2, 3)
    order.claim("a", blocks)
    order.claim("b", blocks[:1])
    for block in blocks:
        order.add(block)
    assert [order.pop().block_id for _ in range(3)] == [2, 3, 1]


def test_slru_demotes_the_oldest_protected_block_when_there_are_too_many() -> None:
    order, blocks = SegmentedLru(1), _blocks(1, 2)
    order.claim("a", blocks)
    order.claim("a", blocks)
    for block in blocks:
        order.add(block)
    assert order.pop().block_id == 1


def test_arc_keeps_what_comes_back_after_its_eviction() -> None:
    order, blocks = AdaptiveOrder(10), _blocks(1, 2)
    order.claim("a", blocks)
    order.add(blocks[0])
    order.add(blocks[1])
    assert order.pop().block_id == 1
    again = _Block(7, blocks[0].block_hash)
    order.claim("a", [again])
    order.add(again)
    # The return raised the target of the recent list, so it may hold its one block.
    assert order.pop().block_id == 7


def test_round_robin_takes_one_tail_block_of_each_session_and_shared_ones_last() -> None:
    order, shared = RoundRobinTails(), _blocks(0)
    mine, yours = _blocks(1, 2, 3), _blocks(4, 5)
    order.claim("a", shared + mine)
    order.claim("b", shared + yours)
    for block in [*reversed(mine), *reversed(yours), *shared]:
        order.add(block)
    assert [order.pop().block_id for _ in range(6)] == [3, 5, 2, 4, 1, 0]


def test_waiting_requests_go_by_preemption_then_key_then_arrival() -> None:
    keys = {"a": 1, "b": 0, "c": 0, "d": 9}
    queue = OrderedQueue(key=lambda request: keys[request.request_id])
    for name, arrived, preempted in (("a", 0, 0), ("c", 3, 0), ("b", 2, 0), ("d", 4, 1)):
        queue.add_request(_Request(name, arrived, preempted))
    assert [queue.pop_request().request_id for _ in range(4)] == ["d", "b", "c", "a"]


def test_a_queue_whose_requests_may_not_run_looks_empty_and_still_counts_them() -> None:
    may_run = {"b"}
    queue = OrderedQueue(is_eligible=lambda request: request.request_id in may_run)
    queue.add_request(_Request("a", 0))
    assert not queue and len(queue) == 1
    queue.add_request(_Request("b", 1))
    assert queue and queue.peek_request().request_id == "b"


def test_keys_are_asked_for_again_in_the_next_step() -> None:
    keys = {"a": 0, "b": 1}
    queue = OrderedQueue(key=lambda request: keys[request.request_id])
    for name in keys:
        queue.add_request(_Request(name, 0))
    assert queue.peek_request().request_id == "a"
    keys["a"] = 2
    assert queue.peek_request().request_id == "a"
    queue.begin_step()
    assert queue.peek_request().request_id == "b"
