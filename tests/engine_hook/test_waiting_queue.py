from __future__ import annotations

from dataclasses import dataclass

import pytest
from cachewise_engine_hook.check import replacement_problems
from cachewise_engine_hook.waiting_queue import (
    LOOKED_UP_IN_HASTE,
    LOOKED_UP_PER_STEP,
    PrefixAwareQueue,
)
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.sched.request_queue import RequestQueue


@dataclass(eq=False)
class Waiting:
    request_id: str
    missing: int = 1
    priority: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0


def make_queue(
    *requests: Waiting,
    max_overtakes: int = 1000,
    max_wait_s: float = 1e9,
    by_priority: bool = False,
) -> PrefixAwareQueue[Waiting]:
    queue: PrefixAwareQueue[Waiting] = PrefixAwareQueue(
        lambda r: r.missing, max_overtakes, max_wait_s, by_priority
    )
    for request in requests:
        queue.add_request(request)
    queue.begin_step(0.0)
    return queue


def drain(queue: PrefixAwareQueue[Waiting]) -> list[str]:
    return [queue.pop_request().request_id for _ in range(len(queue))]


def test_the_fewest_missing_blocks_go_first_and_ties_go_by_arrival() -> None:
    queue = make_queue(Waiting("a", 9), Waiting("b", 2), Waiting("c", 5), Waiting("d", 2))
    assert [r.request_id for r in queue] == ["b", "d", "c", "a"]
    assert drain(queue) == ["b", "d", "c", "a"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_what_peek_shows_is_what_pop_gives(missing: list[int]) -> None:
    queue = make_queue(*[Waiting(str(i), m) for i, m in enumerate(missing)])
    while queue:
        assert queue.peek_request() is queue.pop_request()
    with pytest.raises(IndexError):
        queue.peek_request()


def test_a_request_is_overtaken_at_most_so_often() -> None:
    queue = make_queue(Waiting("big", 1000), max_overtakes=3)
    admitted = []
    for i in range(6):
        queue.add_request(Waiting(f"small{i}"))
        queue.begin_step(float(i))
        admitted.append(queue.pop_request().request_id)
        queue.end_step()
    assert admitted == ["small0", "small1", "small2", "big", "small3", "small4"]
    assert queue.overtakes == 3


def test_a_request_that_has_waited_long_enough_goes_next_the_oldest_first() -> None:
    queue = make_queue(Waiting("old", 9), Waiting("less old", 8), max_wait_s=10)
    queue.begin_step(10.0)
    queue.add_request(Waiting("new", 1))
    assert drain(queue) == ["old", "less old", "new"]


def test_a_skipped_request_keeps_its_place_and_overtakes_nobody() -> None:
    queue = make_queue(Waiting("old", 9), Waiting("blocked", 1))
    skipped = queue.pop_request()
    queue.prepend_requests([skipped])
    assert queue.end_step() == []
    assert queue.overtakes == 0
    assert drain(queue) == ["blocked", "old"]


def test_a_preempted_request_comes_before_all_others() -> None:
    """Case 7 of the public faults: a preempted request keeps its place, nothing overtakes it."""
    queue = make_queue(Waiting("due", 1, arrival_time=1), Waiting("b", 0), max_wait_s=0)
    queue.prepend_request(Waiting("later", 500, num_preemptions=1, arrival_time=3))
    queue.prepend_request(Waiting("earlier", 900, num_preemptions=1, arrival_time=2))
    assert drain(queue)[:2] == ["earlier", "later"]


def test_priority_decides_first_under_vllms_priority_policy_and_the_lower_wins() -> None:
    urgent, idle = Waiting("urgent", 900, priority=-1), Waiting("idle", 0, priority=1)
    assert drain(make_queue(idle, urgent, by_priority=True)) == ["urgent", "idle"]
    assert drain(make_queue(idle, urgent)) == ["idle", "urgent"]


def test_the_admitted_are_reported_with_their_wait() -> None:
    queue = make_queue(Waiting("a"))
    queue.begin_step(4.0)
    queue.pop_request()
    assert [(r.request_id, s) for r, s in queue.end_step()] == [("a", 4.0)]


def test_removed_requests_are_gone_and_unknown_ones_are_no_error() -> None:
    a, b, c = Waiting("a"), Waiting("b"), Waiting("c")
    queue = make_queue(a, b)
    queue.remove_requests([a, c])
    assert drain(queue) == ["b"] and not queue and len(queue) == 0


def counted_queue(size: int) -> tuple[PrefixAwareQueue[Waiting], list[str], list[Waiting]]:
    asked: list[str] = []
    queue: PrefixAwareQueue[Waiting] = PrefixAwareQueue(
        lambda r: asked.append(r.request_id) or r.missing, 1000, 1e9
    )
    requests = [Waiting(f"{i:03d}", missing=5) for i in range(size)]
    for request in requests:
        queue.add_request(request)
    return queue, asked, requests


def test_missing_blocks_are_looked_up_when_asked_for_and_then_remembered() -> None:
    queue, asked, _ = counted_queue(3)
    for _ in range(5):
        queue.peek_request()
    assert sorted(asked) == ["000", "001", "002"]


def test_a_request_whose_session_lost_blocks_is_looked_up_again() -> None:
    queue, asked, requests = counted_queue(3)
    assert queue.peek_request() is requests[0]
    requests[2].missing = 1
    asked.clear()
    queue.look_up_again(["002", "unknown"])
    assert queue.peek_request() is requests[2] and asked == ["002"]
    queue.look_up_all_again()
    assert queue.peek_request() is requests[2] and sorted(asked) == ["000", "001", "002", "002"]


def test_whatever_changes_is_noticed_in_turns_a_few_requests_per_step() -> None:
    queue, asked, requests = counted_queue(100)
    queue.peek_request()
    requests[77].missing = 1
    asked.clear()
    steps = 0
    while queue.peek_request() is not requests[77]:
        queue.begin_step(0.0)
        steps += 1
    assert steps <= 2 * 100 / LOOKED_UP_PER_STEP and len(asked) <= LOOKED_UP_PER_STEP * steps


def test_it_has_every_method_of_vllms_queue() -> None:
    assert replacement_problems(RequestQueue, PrefixAwareQueue) == []


def test_without_pressure_the_order_is_that_of_arrival() -> None:
    queue = make_queue(Waiting("a", 9), Waiting("b", 2))
    queue.in_arrival_order = True
    assert drain(queue) == ["a", "b"]


events = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "step", "pop", "skip", "leave", "change", "decide", "reorder"]
        ),
        st.integers(0, 7),
        st.integers(0, 9),
    ),
    max_size=40,
)


def move(queue: PrefixAwareQueue[Waiting], what: str, request: Waiting, now: float) -> None:
    """What happens to a queue, where it can: an arrival only of a request that does not wait."""
    name, is_waiting = request.request_id, request.request_id in queue.request_ids()
    if what == "arrive" and not is_waiting:
        queue.add_request(request)
    elif what == "step":
        queue.end_step()
        queue.begin_step(now)
    elif what in ("pop", "skip") and queue:
        popped = queue.pop_request()
        if what == "skip":
            queue.prepend_request(popped)
    elif what == "leave" and is_waiting:
        queue.remove_request(request)
    elif what == "change":
        queue.look_up_again([name])
    elif what == "decide":
        queue.decide_again([name])
    elif what == "reorder":
        queue.in_arrival_order = not queue.in_arrival_order


@given(events, st.integers(1, 3), st.sampled_from([3.0, 1e9]))
def test_the_order_that_is_kept_is_that_of_sorting_anew(
    moves: list[tuple[str, int, int]], most: int, longest_s: float
) -> None:
    """Of two queues that see the same, one sorts all anew whenever it is asked."""
    asleep: set[str] = set()
    kept, anew = (make_queue(max_overtakes=most, max_wait_s=longest_s) for _ in range(2))
    kept.is_eligible = anew.is_eligible = lambda r: r.request_id not in asleep
    requests = [Waiting(f"{i}", num_preemptions=i == 7) for i in range(8)]
    for moment, (what, number, missing) in enumerate(moves):
        request = requests[number]
        if what == "decide":
            asleep ^= {request.request_id}
        elif what in ("change", "arrive"):
            request.missing = missing
        for queue in (kept, anew):
            move(queue, what, request, float(moment))
        anew._order = None
        assert bool(kept) == bool(anew) and kept.request_ids() == anew.request_ids()
        assert not kept or kept.peek_request() is anew.peek_request()
    assert kept.overtakes == anew.overtakes


def test_what_was_lost_for_everybody_is_looked_up_within_a_few_steps() -> None:
    queue, asked, requests = counted_queue(1000)
    queue.peek_request()
    asked.clear()
    queue.look_up_all_again()
    queue.peek_request()
    steps = 0
    while len(set(asked)) < len(requests):
        queue.begin_step(0.0)
        queue.peek_request()
        steps += 1
    assert steps < 1000 / LOOKED_UP_IN_HASTE and len(asked) == len(requests)


def test_a_skipped_request_is_due_in_time_whatever_came_meanwhile() -> None:
    queue = make_queue(*[Waiting(f"{i}") for i in range(40)], Waiting("old", 9), max_wait_s=10)
    *_, skipped = [queue.pop_request() for _ in range(41)]
    queue.add_request(Waiting("new", 1))
    queue.prepend_request(skipped)
    queue.begin_step(9.0)
    queue.add_request(Waiting("newer", 0))
    assert queue.peek_request().request_id == "newer"
    queue.begin_step(10.0)
    assert drain(queue) == ["old", "new", "newer"]
