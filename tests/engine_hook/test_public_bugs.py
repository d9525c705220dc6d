"""Faults that people who run such systems have seen in public, as situations on this product.

The cases are numbered as in the project's list of them; case 9 is in test_flood.py, 10 in
test_tool_calls.py, 14 in test_identity.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from cachewise_engine_hook import check
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate, SessionTable
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler

from .middleware_stack import CHAT
from .test_middleware import ScriptedApp, exchange, http_scope, in_messages, wrap
from .vllm_scheduler import BLOCK, make_request, make_scheduler, run, step


def cached_blocks(pool: BlockPool, count: int, name: str) -> list[KVCacheBlock]:
    """A chain that is in use: `count` blocks, each with content."""
    blocks = pool.get_new_blocks(count)
    for place, block in enumerate(blocks):
        pool._insert_block_hash(f"{name}{place}".encode() + bytes(4), block, num_tokens=BLOCK)
    return blocks


def pool_with(table: SessionTable, blocks: int) -> BlockPool:
    """A block pool of vLLM's with our free queue; one block more than asked for is the null one."""
    pool = BlockPool(blocks + 1, enable_caching=True, hash_block_size=BLOCK)
    free = pool.free_block_queue.get_all_free_blocks()
    pool.free_block_queue = PredictiveFreeQueue(free, blocks + 1, table)
    return pool


def leave(pool: BlockPool, table: SessionTable, session: str, blocks: Any, now: float) -> None:
    """The session's request is over: its blocks are given back."""
    pool.free_block_queue.begin_step(now)
    pool.free_block_queue.ranks_changed()
    table.request_arrived(session, now)
    pool.free_block_queue.claim(session, blocks)
    pool.free_blocks(reversed(blocks))
    table.request_left(session, now)


def foresee(table: SessionTable, session: str, curve: Forecast, now: float) -> None:
    assert table.apply(ForecastUpdate(session, now, curve)) == ""


def test_case_1_an_ancestor_never_goes_before_its_descendant() -> None:
    """The pool's three blocks hold one chain. One block is wanted, and again after a new ranking.

    Seen: the first block of the chain was taken, and the two behind it were of no use any more.
    """
    table = SessionTable(10)
    pool = pool_with(table, 3)
    chain = cached_blocks(pool, 3, "a")
    leave(pool, table, "a", chain, now=0.0)
    foresee(table, "a", Forecast((0.0,), (10.0,)), now=0.0)
    assert pool.get_new_blocks(1) == [chain[2]]
    pool.free_block_queue.begin_step(1.0)
    pool.free_block_queue.ranks_changed()
    foresee(table, "a", Forecast((0.0, 5.0), (1.0, 2.0)), now=1.0)
    pool.free_block_queue.begin_step(2.0)
    pool.free_block_queue.ranks_changed()
    assert pool.get_new_blocks(2) == [chain[1], chain[0]]


@pytest.mark.parametrize("has_forecasts", [False, True])
def test_case_2_partial_blocks_are_used_again_first_and_cached_ones_stay(
    has_forecasts: bool,
) -> None:
    """Many concurrent short prompts, each of one full block and one that is partial.

    Seen: the partial blocks, which can serve nobody, were kept, and cached ones handed out.
    """
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=33, step_tokens=512)
    requests = [make_request(f"r{i}", [i] * 20, session=f"s{i}") for i in range(16)]
    for request in requests:
        scheduler.add_request(request)
    run(scheduler)
    if has_forecasts:
        for i in range(16):
            key = hash_session(f"s{i}", "")
            curve = Forecast((0.0,), (float(100 * i),))
            scheduler._hook.take_forecast(ForecastUpdate(key, scheduler.clock(), curve))
    scheduler.add_request(make_request("long", [99] * (15 * BLOCK), session="long"))
    run(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    assert all(pool.get_cached_block(r.block_hashes[0], [0]) for r in requests)


blocks_of_the_pool = st.lists(st.integers(0, 9), max_size=12)


@given(blocks_of_the_pool, st.lists(st.booleans(), min_size=10, max_size=10))
def test_case_4_the_free_queue_is_consistent_whatever_is_freed(
    ids: list[int], cached: list[bool]
) -> None:
    """free_blocks is given the null block, one block twice, one that is free already.

    Seen: the count and the list of free blocks differed, and a block was handed out twice. Here
    the queue must be the very one of stock vLLM.
    """

    def free_after(pool: BlockPool) -> list[int]:
        for block in pool.get_new_blocks(6):
            if cached[block.block_id]:
                pool._insert_block_hash(b"%d" % block.block_id + bytes(4), block, num_tokens=BLOCK)
        pool.free_blocks(pool.blocks[i] for i in ids)
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        assert len(set(free)) == len(free) == pool.get_num_free_blocks()
        return free

    ours, stock = pool_with(SessionTable(10), 9), BlockPool(10, True, hash_block_size=BLOCK)
    assert free_after(ours) == free_after(stock)


def test_case_5_a_session_that_becomes_more_evictable_while_others_are_chosen_is_found() -> None:
    """Two sessions; the one that was wanted soon has by and by become the one wanted last.

    Seen: a lazy heap found its old key buried under fresher ones, and took the wrong victim.
    """
    table = SessionTable(10)
    pool = pool_with(table, 6)
    hung, steady = cached_blocks(pool, 3, "hung"), cached_blocks(pool, 3, "steady")
    leave(pool, table, "hung", hung, now=0.0)
    leave(pool, table, "steady", steady, now=0.0)
    foresee(table, "hung", Forecast((0.0, 100.0), (1.0, 1000.0)), now=0.0)
    foresee(table, "steady", Forecast((0.0, 100.0), (50.0, 10.0)), now=0.0)
    taken = []
    for now in (0.0, 1.0, 100.0, 101.0):
        pool.free_block_queue.begin_step(now)
        pool.free_block_queue.ranks_changed()
        taken += pool.get_new_blocks(1)
    assert taken == [steady[2], steady[1], hung[2], hung[1]]


@given(
    curves=st.lists(st.lists(st.floats(0, 1e4), min_size=3, max_size=3), min_size=2, max_size=5),
    times=st.lists(st.floats(0, 300), min_size=1, max_size=8),
)
def test_case_5_the_victim_is_always_the_session_wanted_last_at_that_moment(
    curves: list[list[float]], times: list[float]
) -> None:
    """The same with any curves, at any times, against the plain maximum."""
    table = SessionTable(10)
    pool = pool_with(table, 4 * len(curves))
    owner = {}
    for number, curve in enumerate(curves):
        chain = cached_blocks(pool, 4, f"s{number}.")
        owner |= {block.block_id: f"s{number}" for block in chain}
        leave(pool, table, f"s{number}", chain, now=0.0)
        foresee(table, f"s{number}", Forecast((0.0, 10.0, 100.0), tuple(curve)), now=0.0)
    for now in sorted(times):
        pool.free_block_queue.begin_step(now)
        pool.free_block_queue.ranks_changed()
        here = {owner[b.block_id] for b in pool.free_block_queue.get_all_free_blocks()}
        if not here:
            break
        (victim,) = pool.get_new_blocks(1)
        latest = max(table.time_to_reuse(session, now) for session in here)
        assert table.time_to_reuse(owner[victim.block_id], now) == latest


def test_case_6_cold_requests_wait_a_bounded_time_among_many_warm_ones() -> None:
    """95 % of the requests find their prefix and are short; 5 % are cold and long; load is heavy.

    Seen: the cold ones waited behind all others and made up 75 % of all time to the first token.
    Here none waits longer than max_wait_s, and all wait less than under stock vLLM.
    """
    max_wait_s = 30.0
    waits = {
        name: cold_and_warm_waits(scheduler_class, max_wait_s)
        for name, scheduler_class in (("stock", Scheduler), ("ours", CacheWiseScheduler))
    }
    (stock_cold, stock_warm), (cold, warm) = waits["stock"], waits["ours"]
    assert max(stock_cold) > max_wait_s, "the load is too light to show anything"
    assert max(cold) < max_wait_s
    assert sum(cold) < 0.75 * (sum(cold) + sum(warm))
    assert sum(cold) < sum(stock_cold) and sum(warm) < sum(stock_warm)


def cold_and_warm_waits(scheduler_class: Any, max_wait_s: float) -> tuple[list[float], list[float]]:
    """Seconds from arrival to the first token, of cold and of warm requests.

    Every 2 s ten of 20 sessions send their next turn, 24 tokens longer than the last; every 4 s
    comes a cold prompt of 480 tokens. A step computes 96 tokens in 0.1 s, thrice the load as long
    as nothing is computed twice; but the pool holds less than half of what the sessions come to.
    """
    scheduler = make_scheduler(
        scheduler_class, num_blocks=300, step_tokens=96, settings={"max_wait_s": max_wait_s}
    )
    waits: dict[str, float] = {}
    arrived: dict[str, float] = {}

    def send(name: str, tokens: list[int], session: str, now: float) -> None:
        arrived[name] = now
        scheduler.add_request(make_request(name, tokens, session=session))

    for number in range(1200):
        now = number * 0.1
        scheduler.clock = lambda now=now: now
        if number % 40 == 0 and number < 600:
            send(f"cold{number}", [number % 250] * 480, f"cold{number}", now)
        if number % 20 == 0 and number < 600:
            turn, odd = divmod(number // 20, 2)
            for session in range(odd, 20, 2):
                prompt = [session] * (160 + 24 * turn)
                send(f"warm{session}.{turn}", prompt, f"s{session}", now)
        for request_id in list(step(scheduler).num_scheduled_tokens):
            request = scheduler.requests.get(request_id)
            if request is None or request.num_output_tokens:
                waits.setdefault(request_id, now + 0.1 - arrived[request_id])
    assert waits.keys() == arrived.keys()
    return (
        [s for name, s in waits.items() if name.startswith("cold")],
        [s for name, s in waits.items() if name.startswith("warm")],
    )


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_case_7_a_preempted_request_keeps_its_place(policy: str) -> None:
    """A request is preempted while others wait whose prefixes are resident.

    Seen: it went back into a priority queue by its new key, and others overtook it again and again.
    """
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=24, step_tokens=256, policy=policy)
    scheduler.add_request(make_request("warm", [3] * 32, session="c"))
    run(scheduler)
    for name, token in (("first", 1), ("second", 2)):  # of no session: admission keeps none back
        scheduler.add_request(make_request(name, [token] * 144, max_tokens=60))
    for _ in range(100):
        step(scheduler)
        if preempted := [r for r in scheduler.requests.values() if r.num_preemptions]:
            break
    for number in range(4):
        scheduler.add_request(make_request(f"warm{number}", [3] * 32 + [number], session="c"))
    admitted: list[str] = []
    while scheduler.has_unfinished_requests():
        plan = step(scheduler)
        cached = plan.scheduled_cached_reqs
        admitted += [*cached.resumed_req_ids, *(r.req_id for r in plan.scheduled_new_reqs)]
    assert admitted[0] == preempted[0].request_id


def test_case_8_arguments_that_the_subclass_does_not_know_are_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later vLLM calls the scheduler's methods with one argument more.

    Seen: a plug-in's subclass had the old signature, and every request failed.
    """
    seen: dict[str, object] = {}

    def takes_more(name: str) -> None:
        original = getattr(Scheduler, name)

        def later(self: Any, *args: Any, new_in_vllm: object = None, **kwargs: Any) -> Any:
            seen[name] = new_in_vllm
            return original(self, *args, **kwargs)

        monkeypatch.setattr(Scheduler, name, later)

    names = ["schedule", "add_request", "reset_prefix_cache", "_free_request"]
    names.append("_free_request_blocks")
    monkeypatch.setattr(check, "class_problems", lambda scheduler: [])
    for name in names:
        takes_more(name)
    scheduler = make_scheduler(CacheWiseScheduler)
    request = make_request("r", [1] * 20, session="s")
    scheduler.add_request(request, new_in_vllm=1)
    scheduler.schedule(new_in_vllm=2)
    request.status = request.status.__class__.FINISHED_ABORTED
    scheduler.running.remove(request)
    scheduler._free_request(request, new_in_vllm=3)
    scheduler.reset_prefix_cache(new_in_vllm=4)
    assert {**seen, "_free_request_blocks": 5} == {
        "add_request": 1,
        "schedule": 2,
        "_free_request": 3,
        "reset_prefix_cache": 4,
        "_free_request_blocks": 5,
    }


def test_case_8_where_they_cannot_be_passed_on_the_start_up_check_names_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that the hook relies on has lost an argument."""
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)
    with pytest.raises(check.UnsupportedVllm, match=r"0\.3\d.*schedule takes no throttle_prefills"):
        make_scheduler(CacheWiseScheduler)


@given(
    remaining=st.lists(st.floats(0, 1e5), min_size=1, max_size=32),
    overdue=st.lists(st.floats(0.001, 1e6), min_size=2, max_size=6, unique=True),
)
def test_case_11_a_tool_that_runs_longer_than_any_before_becomes_more_evictable(
    remaining: list[float], overdue: list[float]
) -> None:
    """The elapsed time lies beyond the longest sample, where the curve ends, even at 0.

    Seen: the published predictor said "returns now", and the hung session's blocks stayed for ever.
    """
    curve = Forecast(tuple(2.0**i - 1 for i in range(len(remaining))), tuple(remaining))
    end = curve.elapsed_s[-1]
    waits = [curve.remaining(end + s) for s in sorted(overdue)]
    assert waits == sorted(waits)
    assert all(wait >= 0.99 * s for wait, s in zip(waits, sorted(overdue), strict=True))


def test_case_13_vllms_own_priority_lower_wins() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=12, policy="priority")
    for name, priority in (("idle", 5), ("urgent", -5), ("usual", 0)):
        scheduler.add_request(make_request(name, [1] * 100, session=name, priority=priority))
    assert list(step(scheduler).num_scheduled_tokens) == ["urgent"]


@pytest.mark.parametrize(("dynamos", "vllms"), [(5, b"-5"), (-2, b"2")])
async def test_case_13_dynamos_priority_higher_wins_is_converted(
    dynamos: int, vllms: bytes
) -> None:
    """Dynamo's nvext.agent_hints.priority, in a chat request for vLLM, where the lower one wins.

    Seen: it was passed on as it was, and the most urgent requests went last.
    """
    app = ScriptedApp([])
    wrapped, _ = wrap(app)
    body = b'{"session_id": "s", "nvext": {"agent_hints": {"priority": %d}}}' % dynamos
    await exchange(wrapped, http_scope(CHAT), in_messages("http.request", [body]))
    assert dict(app.scope["headers"]).get(b"x-vllm-priority") == vllms


@pytest.mark.parametrize(
    ("nvext", "headers", "vllms"),
    [
        (b'{"agent_hints": {"priority": 5}}', [(b"X-Vllm-Priority", b"7")], b"7"),
        (b'{"agent_hints": {"priority": true}}', [], None),
        (b'{"agent_hints": {"priority": 1e3}}', [], None),
        (b'{"agent_hints": {"priority": 99999999999999999999}}', [], None),
        (b'{"agent_hints": [5]}', [], None),
        (b'"priority"', [], None),
    ],
)
async def test_case_13_a_header_stays_and_what_is_no_priority_is_ignored(
    nvext: bytes, headers: list[tuple[bytes, bytes]], vllms: bytes | None
) -> None:
    app = ScriptedApp([])
    wrapped, _ = wrap(app)
    scope = http_scope(CHAT)
    scope["headers"] = [*scope["headers"], *headers]
    await exchange(wrapped, scope, in_messages("http.request", [b'{"nvext": %s}' % nvext]))
    sent = {key.lower(): value for key, value in app.scope["headers"]}
    assert sent.get(b"x-vllm-priority") == vllms
