"""CacheWise's scheduler class over vLLM's real scheduler, cache manager and block pool."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import vllm
from cachewise_engine_hook.check import UnsupportedVllm
from cachewise_engine_hook.config import ConfigError
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.scheduler import CacheWiseAsyncScheduler, CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from tests.engine_hook.vllm_scheduler import make_request, make_scheduler, run, step

LONG, SHORT = Forecast((0.0,), (1000.0,)), Forecast((0.0,), (1.0,))


def turn(scheduler: Any, name: str, tokens: list[int], session: str | None = None) -> Any:
    request = make_request(name, tokens, session=session)
    scheduler.add_request(request)
    run(scheduler)
    return request


def forecast(scheduler: Any, session: str, curve: Forecast) -> None:
    now = scheduler.clock()
    update = ForecastUpdate(hash_session(session, ""), now, curve)
    scheduler._hook.take_forecast(update)


def resident(scheduler: Any, request: Any) -> int:
    pool = scheduler.kv_cache_manager.block_pool
    return sum(pool.get_cached_block(h, [0]) is not None for h in request.block_hashes)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_base_class_follows_async_scheduling(asynchronous: bool) -> None:
    scheduler = make_scheduler(CacheWiseScheduler, asynchronous=asynchronous)
    assert isinstance(scheduler, CacheWiseScheduler)
    assert isinstance(scheduler, AsyncScheduler) is asynchronous
    assert type(scheduler) is (CacheWiseAsyncScheduler if asynchronous else CacheWiseScheduler)


def test_the_session_with_the_longest_forecast_loses_its_tail() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=50)
    late = turn(scheduler, "late", [2] * 320, "late")  # 20 blocks and one for the answer
    soon = turn(scheduler, "soon", [1] * 320, "soon")
    forecast(scheduler, "late", LONG)
    forecast(scheduler, "soon", SHORT)
    turn(scheduler, "late 2", [2] * 320, "late")
    forecast(scheduler, "late", LONG)  # now soon is the least recently used
    turn(scheduler, "third", [3] * 240, "third")
    assert resident(scheduler, soon) == 20
    assert resident(scheduler, late) == 14
    assert scheduler.kv_cache_manager.block_pool.get_cached_block(late.block_hashes[0], [0])
    assert Readings(scheduler._hook).evicted()["stock"] == 0


def test_a_compacted_history_goes_first_and_one_side_request_supersedes_nothing() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=60)
    long = turn(scheduler, "a1", [1] * 320, "a")
    turn(scheduler, "title", [9] * 32, "a")
    other = turn(scheduler, "b1", [2] * 320, "b")
    forecast(scheduler, "a", SHORT)
    forecast(scheduler, "b", LONG)
    turn(scheduler, "c1", [3] * 320, "c")
    assert resident(scheduler, long) == 20 and resident(scheduler, other) < 20
    for i in (1, 2):  # the history is now a summary
        turn(scheduler, f"compacted{i}", [4] * (48 * i), "a")
        forecast(scheduler, "a", SHORT)
    left = resident(scheduler, other)
    turn(scheduler, "d1", [5] * 240, "d")
    assert resident(scheduler, long) < 10
    assert resident(scheduler, other) == left


def test_without_a_forecast_the_least_recently_used_goes() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=50)
    first = turn(scheduler, "first", [1] * 320)
    second = turn(scheduler, "second", [2] * 320)
    turn(scheduler, "third", [3] * 240)
    assert (resident(scheduler, first), resident(scheduler, second)) == (14, 20)
    assert Readings(scheduler._hook).evicted() == {"forecast": 0, "stock": 6}


def test_the_request_with_the_resident_prefix_goes_first() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=40, step_tokens=16)
    turn(scheduler, "a1", [1] * 320, "a")
    cold, warm = make_request("b1", [2] * 320, session="b"), make_request("a2", [1] * 336)
    scheduler.add_request(cold)
    scheduler.add_request(warm)
    assert list(step(scheduler).num_scheduled_tokens) == ["a2"]
    assert Readings(scheduler._hook).overtakes() == 1


def test_looking_up_the_order_does_not_count_as_a_hit() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=100)
    turn(scheduler, "a1", [1] * 320, "a")
    scheduler.kv_cache_manager.make_prefix_cache_stats()
    scheduler.add_request(make_request("a2", [1] * 336, session="a"))
    assert scheduler._missing_blocks(scheduler.waiting.peek_request()) == 1
    stats = scheduler.kv_cache_manager.make_prefix_cache_stats()
    assert stats.queries == 0 and stats.hits == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_sessions_end_with_every_block_free_under_preemption_and_aborts(seed: int) -> None:
    """Small pool, long outputs, aborts, forecasts that come and go: nothing is lost or doubled."""
    rng = random.Random(seed)
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=30, step_tokens=128)
    looks = itertools.count()
    scheduler.clock = lambda: next(looks) / 100  # a parked request waits for its time to come
    contexts = {f"s{i}": [i] * rng.randint(16, 150) for i in range(6)}
    preemptions = 0
    for number in range(60):
        session = rng.choice(list(contexts))
        request = make_request(
            f"r{number}", contexts[session], max_tokens=rng.randint(1, 60), session=session
        )
        scheduler.add_request(request)
        for _ in range(rng.randint(0, 12)):
            step(scheduler)
        if rng.random() < 0.2:
            victim = rng.choice(list(scheduler.requests or ["nobody"]))
            scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.5:
            forecast(scheduler, rng.choice(list(contexts)), rng.choice([LONG, SHORT]))
        preemptions += request.num_preemptions
        queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        free = queue.get_all_free_blocks()
        assert len({b.block_id for b in free}) == len(free) == queue.num_free_blocks
        assert all(b.ref_cnt == 0 for b in free)
    run(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 29
    assert all(not s.active_requests for s in Readings(scheduler._hook).session_list())
    assert len(scheduler._hook.requests) == 0
    assert scheduler.reset_prefix_cache()


def test_a_stock_scheduler_and_ours_without_sessions_evict_the_same_blocks() -> None:
    def evictions(scheduler_class: Any) -> list[int]:
        scheduler = make_scheduler(scheduler_class, num_blocks=30)
        pool, evicted = scheduler.kv_cache_manager.block_pool, []
        evict = pool._maybe_evict_cached_block

        def recorded(block: Any) -> bool:
            if block.block_hash is not None:
                evicted.append(block.block_id)
            return evict(block)

        pool._maybe_evict_cached_block = recorded
        rng = random.Random(5)
        for number in range(80):
            kind = rng.randint(0, 5)
            turn(scheduler, f"r{number}", [kind] * rng.randint(16, 250))
        return evicted

    stock = evictions(Scheduler)
    assert stock and evictions(CacheWiseScheduler) == stock


def test_recomputed_tokens_are_those_that_the_session_had_computed_before() -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=31)
    turn(scheduler, "a1", [1] * 320, "a")
    turn(scheduler, "a2", [1] * 336, "a")
    assert scheduler._hook.counts.recomputed_tokens == 0
    turn(scheduler, "b1", [2] * 400, "b")  # 25 blocks push all but a few of a's out
    turn(scheduler, "a3", [1] * 352, "a")
    counts = scheduler._hook.counts
    assert counts.requests == 4 and counts.prompt_tokens == 320 + 336 + 400 + 352
    assert 200 < counts.recomputed_tokens <= 336


def test_a_bad_setting_stops_start_up_and_is_named() -> None:
    with pytest.raises(ConfigError, match="max_overtakes"):
        make_scheduler(CacheWiseScheduler, settings={"max_overtakes": "x"})


def test_another_vllm_is_refused_or_served_as_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with pytest.raises(UnsupportedVllm, match="0.99.0"):
        make_scheduler(CacheWiseScheduler)
    scheduler = make_scheduler(CacheWiseScheduler, settings={"fallback": True})
    assert isinstance(scheduler.kv_cache_manager.block_pool.free_block_queue, FreeKVCacheBlockQueue)
    turn(scheduler, "a", [1] * 100, "a")
    scheduler.shutdown()
