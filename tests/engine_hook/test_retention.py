"""Claims and the decision trace over vLLM's own scheduler, cache manager and block pool."""

from __future__ import annotations

import json
import random
import urllib.request
from itertools import groupby
from typing import Any

import pytest
from cachewise_engine_hook.admission import PATIENCE_S, SLACK
from cachewise_engine_hook.claims import Asked, Ended
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.scheduler import CacheWiseAsyncScheduler, CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.request import RequestStatus

from tests.engine_hook.compatibility.test_hybrid import LAYOUTS
from tests.engine_hook.test_listing import free_port
from tests.engine_hook.vllm_scheduler import make_request, make_scheduler, run, step

LONG, SHORT = Forecast((0.0,), (1000.0,)), Forecast((0.0,), (1.0,))


class Clocked(CacheWiseScheduler):
    """Each step takes a tenth of a second, and a test may set the time."""

    time_s = 0.0
    pause = staticmethod(lambda seconds: None)

    def clock(self) -> float:  # type: ignore[override]
        return self.time_s

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.time_s += 0.1
        return super().schedule(*args, **kwargs)


class ClockedAsync(Clocked, CacheWiseAsyncScheduler):
    """The same over vLLM's AsyncScheduler."""


def make(num_blocks: int = 50, **settings: object) -> Any:
    return make_scheduler(Clocked, num_blocks=num_blocks, settings=settings)


def asking(
    name: str, tokens: list[int], session: str | None = None, retain_s: object = None, **more: Any
) -> Any:
    request = make_request(name, tokens, session=session, **more)
    if retain_s is not None:
        request.sampling_params.extra_args = {"cachewise_retain_s": retain_s}
    return request


def turn(
    scheduler: Any,
    name: str,
    tokens: list[int],
    session: str | None = None,
    retain_s: object = None,
    **more: Any,
) -> Any:
    request = asking(name, tokens, session, retain_s, **more)
    scheduler.add_request(request)
    run(scheduler)
    return request


def prompt(letter: int, blocks: int) -> list[int]:
    return [letter] * (16 * blocks)


def resident(scheduler: Any, request: Any) -> int:
    pool = scheduler.kv_cache_manager.block_pool
    return sum(pool.get_cached_block(h, [0]) is not None for h in request.block_hashes)


def forecast(scheduler: Any, session: str, curve: Forecast | None, ended: bool = False) -> None:
    now = scheduler.clock()
    scheduler._hook.take_forecast(
        ForecastUpdate(hash_session(session, ""), now, curve, ended, received_at=now)
    )


def book(scheduler: Any) -> Any:
    return scheduler._hook.claims.book


def outcomes(scheduler: Any, session: str) -> list[str]:
    key = hash_session(session, "")
    return [event.outcome for event in book(scheduler).events if event.session == key]


@pytest.mark.parametrize("forecasts", [False, True])
@pytest.mark.parametrize("retain_s", [None, 60.0])
def test_a_claimed_session_outlasts_pressure_that_would_evict_it(forecasts, retain_s) -> None:
    scheduler = make()
    kept = turn(scheduler, "a1", prompt(1, 20), "a", retain_s)
    for i in range(6):
        if forecasts:
            forecast(scheduler, "a", LONG)
        other = "bcd"[i % 3]
        turn(scheduler, f"{other}{i}", prompt(2 + i % 3, 20), other)
        if forecasts:
            forecast(scheduler, other, SHORT)
    assert resident(scheduler, kept) == (0 if retain_s is None else 20)
    known = scheduler._hook.counts.hit_tokens
    turn(scheduler, "a2", prompt(1, 21), "a")
    assert scheduler._hook.counts.hit_tokens - known == (0 if retain_s is None else 320)
    assert outcomes(scheduler, "a") == (
        [] if retain_s is None else ["deferred", "accepted", "kept"]
    )
    assert Readings(scheduler._hook).blocks()["protected"] == 0


@pytest.mark.parametrize("scheduler_class", [Clocked, ClockedAsync])
@pytest.mark.parametrize("layout", [{}, *LAYOUTS.values()], ids=["full only", *LAYOUTS])
def test_a_claim_holds_for_every_kind_of_model_and_both_bases(scheduler_class, layout) -> None:
    scheduler = make_scheduler(scheduler_class, num_blocks=70, settings={}, **layout)
    turn(scheduler, "a1", prompt(1, 15), "a", 600.0)
    held = Readings(scheduler._hook).blocks()["protected"]
    for i in range(6):
        turn(scheduler, f"b{i}", prompt(2 + i, 15), f"b{i}")
    assert 0 < held == Readings(scheduler._hook).blocks()["protected"]
    known = scheduler._hook.counts.hit_tokens
    turn(scheduler, "a2", prompt(1, 16), "a")
    assert scheduler._hook.counts.hit_tokens - known >= 14 * 16
    assert outcomes(scheduler, "a") == ["deferred", "accepted", "kept"]


def test_a_claim_that_cannot_be_kept_is_refused() -> None:
    scheduler = make()
    scheduler.add_request(asking("a", prompt(1, 10), "a", 60.0, max_tokens=20))
    step(scheduler)
    scheduler.add_request(make_request("anonymous", prompt(2, 34), max_tokens=50))
    while "a" in scheduler.requests:
        step(scheduler)
    assert outcomes(scheduler, "a") == ["deferred", "rejected"]
    assert f"> {50 - int(SLACK * 50)} usable blocks" in book(scheduler).events[-1].reason
    run(scheduler)


def test_breaking_is_visible_in_the_listing() -> None:
    port = free_port()
    scheduler = make(metrics_port=port)
    turn(scheduler, "a1", prompt(1, 20), "a", 600.0)
    url = f"http://127.0.0.1:{port}/claims?session=a"
    with urllib.request.urlopen(url) as response:
        answer = json.load(response)
    assert answer["protected_blocks"] == 20 and answer["live"][0]["blocks"] == 20
    turn(scheduler, "anonymous", prompt(9, 45))
    with urllib.request.urlopen(url) as response:
        answer = json.load(response)
    assert answer["live"] == [] and answer["protected_blocks"] == 0
    assert [e["outcome"] for e in answer["events"]] == [
        "deferred",
        "accepted",
        "broken_under_pressure",
    ]
    assert answer["events"][-1]["reason"] == "running requests have taken all other blocks"
    assert answer["events"][-1]["session"] == hash_session("a", "")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        metrics = response.read().decode()
    assert 'cachewise_claims_ended_total{outcome="broken_under_pressure"} 1.0' in metrics


def test_admission_lets_another_session_wait_for_a_claim_but_not_without_end() -> None:
    scheduler = make()
    claimed = turn(scheduler, "a1", prompt(1, 20), "a", 600.0)
    forecast(scheduler, "a", LONG)
    scheduler.add_request(make_request("b1", prompt(2, 40), session="b"))
    arrived_at = scheduler.time_s
    for waited_s in (1.0, PATIENCE_S[0] / 2, PATIENCE_S[0] - 1):
        scheduler.time_s = arrived_at + waited_s
        assert not step(scheduler).num_scheduled_tokens
    assert resident(scheduler, claimed) == 20
    scheduler.time_s = arrived_at + PATIENCE_S[0]
    assert step(scheduler).num_scheduled_tokens
    run(scheduler)
    assert outcomes(scheduler, "a") == ["deferred", "accepted", "broken_under_pressure"]
    assert book(scheduler).events[-1].reason == "displaced by admission"


def test_a_claim_ends_with_its_time() -> None:
    scheduler = make()
    claimed = turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    scheduler.time_s = 50.0
    turn(scheduler, "b1", prompt(2, 25), "b")
    assert resident(scheduler, claimed) == 20
    scheduler.time_s = 61.0
    for i in range(3):
        turn(scheduler, f"c{i}", prompt(3 + i, 25), "c")
    assert resident(scheduler, claimed) == 0
    assert outcomes(scheduler, "a") == ["deferred", "accepted", "expired"]


def test_by_the_setting_every_turn_that_ends_claims() -> None:
    scheduler = make(claim_ttl_s=60.0)
    first = turn(scheduler, "a1", prompt(1, 20), "a")
    for i in range(4):
        turn(scheduler, f"b{i}", prompt(2 + i, 25), f"b{i}", 0)
    assert resident(scheduler, first) == 20
    turn(scheduler, "a2", prompt(1, 21), "a")
    assert outcomes(scheduler, "a") == ["accepted", "kept", "accepted"]


@pytest.mark.parametrize("value", ["60", True, -1, float("nan"), [60]])
def test_a_wish_that_is_no_number_is_counted_and_ignored(value: object) -> None:
    scheduler = make()
    turn(scheduler, "a1", prompt(1, 20), "a", value)
    assert Readings(scheduler._hook).claims_asked()["malformed"] == 1
    assert outcomes(scheduler, "a") == []


def test_with_a_share_of_nought_there_are_no_claims() -> None:
    scheduler = make(claim_share=0.0, claim_ttl_s=60.0)
    turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    assert outcomes(scheduler, "a") == ["deferred", "rejected"]
    turn(scheduler, "b1", prompt(2, 20), "b")
    assert outcomes(scheduler, "b") == []


def test_a_request_that_is_aborted_in_the_queue_leaves_the_claim_as_it_was() -> None:
    scheduler = make()
    turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    scheduler.add_request(make_request("a2", prompt(1, 21), session="a"))
    scheduler.finish_requests("a2", RequestStatus.FINISHED_ABORTED)
    assert [claim.session for claim in book(scheduler).live()] == [hash_session("a", "")]
    scheduler.time_s = 61.0
    step(scheduler)
    assert outcomes(scheduler, "a")[-1] == "expired"


def test_a_session_that_has_ended_holds_nothing() -> None:
    scheduler = make()
    turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    forecast(scheduler, "a", None, ended=True)
    assert outcomes(scheduler, "a")[-1] == "released"
    assert Readings(scheduler._hook).blocks()["protected"] == 0


def test_a_session_that_is_forgotten_holds_nothing() -> None:
    scheduler = make(max_sessions=1)
    turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    turn(scheduler, "b1", prompt(2, 5), "b")
    assert outcomes(scheduler, "a")[-1] == "released"


def test_resetting_the_prefix_cache_ends_all_claims() -> None:
    scheduler = make()
    turn(scheduler, "a1", prompt(1, 20), "a", 60.0)
    assert scheduler.reset_prefix_cache()
    assert outcomes(scheduler, "a")[-1] == "released"
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 49
    turn(scheduler, "a2", prompt(1, 21), "a", 60.0)
    assert outcomes(scheduler, "a")[-1] == "accepted"


@pytest.mark.parametrize("seed", range(4))
def test_random_sessions_with_claims_under_preemption_and_aborts(seed: int) -> None:
    """Small pool, long outputs, aborts, claims of all lengths: no promise is broken silently."""
    rng = random.Random(seed)
    scheduler = make(num_blocks=100, claim_ttl_s=rng.choice([0.0, 5.0]))
    pool, claims = scheduler.kv_cache_manager.block_pool, scheduler._hook.claims
    contexts = {f"s{i}": [i] * rng.randint(16, 400) for i in range(8)}
    for number in range(60):
        scheduler.time_s += rng.random()
        session = rng.choice(list(contexts))
        retain_s = rng.choice([None, 1.0, 10.0, 1e5])
        scheduler.add_request(
            asking(
                f"r{number}", contexts[session], session, retain_s, max_tokens=rng.randint(1, 90)
            )
        )
        for _ in range(rng.randint(0, 12)):
            step(scheduler)
            protected, active = claims.queue.protected, claims.queue.active
            assert protected + active <= 100 - int(SLACK * 100) or not len(claims.book)
            assert protected <= 50
        if rng.random() < 0.2:
            victim = rng.choice(list(scheduler.requests or ["nobody"]))
            scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        free = pool.free_block_queue.get_all_free_blocks()
        assert len({b.block_id for b in free}) == len(free) == pool.get_num_free_blocks()
        assert all(b.ref_cnt == 0 for b in free)
        assert all(claims.queue.is_resident(claim.session) for claim in claims.book.live())
    run(scheduler)
    asked, ended = claims.book.asked, claims.book.ended
    assert asked[Asked.ACCEPTED] + asked[Asked.CLIPPED] == len(claims.book) + sum(ended.values())
    assert ended[Ended.KEPT] and Ended.EVICTED_BEFORE_REUSE not in ended
    assert pool.get_num_free_blocks() == 99
    scheduler.time_s += 1e6
    for _ in range(3):
        step(scheduler)
    assert not len(claims.book) and not claims.queue.held


def test_the_trace_tells_the_story_of_a_session() -> None:
    scheduler = make(num_blocks=50, trace_share=1.0)
    turn(scheduler, "a1", prompt(1, 20), "a")
    forecast(scheduler, "a", LONG)
    turn(scheduler, "b1", prompt(2, 35), "b", 300.0)
    turn(scheduler, "a2", prompt(1, 21), "a")
    trace = scheduler._hook.trace
    assert trace is not None

    def told(session: str) -> list[str]:
        key = hash_session(session, "")
        return [what for what, _ in groupby(d.what for d in trace.decisions if d.session == key)]

    assert told("a") == [
        "entered",
        "restored",
        "displaced",
        "evicted",
        "parked",
        "entered",
        "restored",
    ]
    assert told("b")[:2] == ["entered", "restored"]
    details = {d.what: d.details for d in trace.decisions if d.session == hash_session("a", "")}
    assert details["displaced"]["for_whom"] == hash_session("b", "")
    assert details["displaced"]["remaining_wait_s"] == pytest.approx(1000.0, rel=0.01)
    assert details["evicted"]["order"] == "forecast" and details["evicted"]["parked"] is True
    assert details["parked"]["missing_blocks"] > details["parked"]["room_blocks"]
    assert details["entered"]["waited_s"] >= PATIENCE_S[0], "b's claim was in the way"
    again = details["restored"]
    assert again["hit_tokens"] + again["recomputed_tokens"] == 320


def test_without_the_setting_nothing_is_traced() -> None:
    scheduler = make()
    assert scheduler._hook.trace is None and scheduler._hook.free_queue.on_evicted is None
