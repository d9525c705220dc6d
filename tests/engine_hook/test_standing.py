"""Classes and tenants: who goes first, how the engine is shared, and that nobody starves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from cachewise_engine_hook.admission import ActiveSet, Candidate
from cachewise_engine_hook.block_groups import Groups
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.room import Room
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from cachewise_engine_hook.standing import (
    HALF_LIFE_S,
    LIKE_ALL,
    MOST_TENANTS,
    QUANTUM_TOKENS,
    Standing,
    Standings,
)
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue
from hypothesis import given
from hypothesis import strategies as st

from tests.engine_hook import test_modes
from tests.engine_hook.vllm_scheduler import make_request, make_scheduler, step


@dataclass(eq=False)
class Asking:
    request_id: str
    extra_args: dict[str, Any] | None = None
    missing: int = 1
    priority: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    sampling_params: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sampling_params = self


def asking(name: str, request_class: str = "", tenant: str = "", missing: int = 1) -> Asking:
    given = {"cachewise_class": request_class, "cachewise_tenant": tenant}
    return Asking(name, {key: value for key, value in given.items() if value}, missing)


def queue_of(standings: Standings, **bounds: Any) -> PrefixAwareQueue[Asking]:
    queue: PrefixAwareQueue[Asking] = PrefixAwareQueue(
        lambda r: r.missing, **{"max_overtakes": 10**6, "max_wait_s": 1e9, **bounds}
    )
    queue.standing = standings.of
    return queue


def test_interactive_goes_before_agents_and_these_before_batch() -> None:
    standings = Standings({})
    queue = queue_of(standings)
    for name, request_class in (
        ("b", "batch"),
        ("plain", ""),
        ("a", "agent"),
        ("i", "interactive"),
    ):
        request = asking(name, request_class, missing=9 if name == "i" else 1)
        standings.request_arrived(request, 0.0)
        queue.add_request(request)
    assert [queue.pop_request().request_id for _ in range(4)] == ["i", "plain", "a", "b"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "interactive", "agent", "batch"]), st.integers(0, 9)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 6),
)
def test_no_class_lets_a_request_be_overtaken_more_often_than_the_bound(arrivals, most) -> None:
    standings = Standings({})
    queue = queue_of(standings, max_overtakes=most)
    overtaken: Counter[str] = Counter()
    waiting: list[str] = []
    for i, (request_class, missing) in enumerate(arrivals):
        queue.begin_step(float(i))
        for half in ("a", "b"):
            request = asking(f"{i}{half}", request_class, missing=missing)
            standings.request_arrived(request, float(i))
            queue.add_request(request)
            waiting.append(request.request_id)
        admitted = queue.pop_request().request_id
        queue.end_step()
        place = waiting.index(admitted)
        overtaken.update(waiting[:place])
        del waiting[place]
    assert max(overtaken.values(), default=0) <= most


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0.5, 4), min_size=2, max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.integers(200, 4_000), min_size=3, max_size=3),
)
def test_under_saturation_shares_approach_the_weights(weights, tokens_of) -> None:
    """Every tenant always has requests in the queue, of its own size."""
    standings = Standings(weights)
    queue, served, now = queue_of(standings), Counter[str](), 0.0
    for tenant in weights:
        for i in range(2):
            request = asking(f"{tenant}{i}", tenant=tenant, missing=ord(tenant))
            standings.request_arrived(request, now)
            queue.add_request(request)
    for _ in range(1_500):
        now += 0.01
        queue.begin_step(now)
        request = queue.pop_request()
        tenant = request.request_id[0]
        standings.served(request, tokens_of[tenant], now)
        served[tenant] += tokens_of[tenant]
        queue.end_step()
        standings.request_left(request)
        standings.request_arrived(request, now)
        queue.add_request(request)
    shares = {tenant: served[tenant] / weights[tenant] for tenant in weights}
    within = QUANTUM_TOKENS * 1.5 + max(tokens_of.values()) / min(weights.values())
    assert max(shares.values()) - min(shares.values()) <= within


def test_a_tenant_that_was_away_saves_nothing_up() -> None:
    standings = Standings({})
    here, newcomer = asking("h", tenant="here"), asking("n", tenant="newcomer")
    standings.request_arrived(here, 0.0)
    standings.served(here, 50 * QUANTUM_TOKENS, 0.0)
    standings.request_arrived(newcomer, 1.0)
    assert standings.of(newcomer).quanta == standings.of(here).quanta > 40


def test_old_service_counts_half_after_its_half_life() -> None:
    standings = Standings({"big": 2.0})
    request = asking("r", tenant="big")
    standings.request_arrived(request, 0.0)
    standings.served(request, 80 * QUANTUM_TOKENS, 0.0)
    assert standings.of(request).quanta == 40
    standings.served(request, 0, HALF_LIFE_S)
    assert standings.of(request).quanta == 20


def test_while_nobody_names_anything_all_stand_alike_and_nothing_is_kept() -> None:
    standings = Standings({})
    for i in range(100):
        request = Asking(str(i), None)
        standings.request_arrived(request, float(i))
        standings.served(request, 10**6, float(i))
        assert standings.of(request) is LIKE_ALL
        standings.request_left(request)
    assert not standings._here and not standings._service and not standings._named


def test_tenants_are_forgotten_once_they_have_gone_and_only_so_many_are_told_apart() -> None:
    standings = Standings({})
    for i in range(3 * MOST_TENANTS):
        request = asking(str(i), tenant=f"t{i}")
        standings.request_arrived(request, 0.0)
        standings.served(request, 1_000, 0.0)
        standings.request_left(request)
    assert len(standings._service) <= MOST_TENANTS + 1
    standings.request_arrived(asking("late", tenant="late"), 100 * HALF_LIFE_S)
    assert set(standings._service) <= {"", "late"}


@pytest.mark.parametrize(
    "given",
    [{"cachewise_class": "urgent"}, {"cachewise_class": ["agent"]}, {"cachewise_tenant": [1]}],
)
def test_what_is_no_class_and_no_tenant_is_counted_and_changes_nothing(given) -> None:
    standings = Standings({})
    request = Asking("r", given)
    standings.request_arrived(request, 0.0)
    assert standings.malformed == 1 and standings.of(request) == LIKE_ALL


def test_admission_lets_the_better_standing_in_first_whatever_it_lacks() -> None:
    active = ActiveSet(0.1, 100, lambda s, now: 0.0, lambda s: 1.0)
    batch = Candidate(0, Standing(2), 10, 1, "batch", 1.0)
    interactive = Candidate(0, Standing(0), 60, 2, "interactive", 1.0)
    active.update(0.0, [batch, interactive], {"other"}, Room(70, Groups()))
    assert "interactive" in active and "batch" not in active


def test_a_request_says_its_class_in_vllm_xargs() -> None:
    """Over vLLM's scheduler: two wait while a step has room for one, the interactive one last."""
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=50, step_tokens=16)
    scheduler.add_request(make_request("first", [1] * 64, session="s1"))
    step(scheduler)
    for name in ("batch", "interactive"):
        request = make_request(name, [ord(name[0])] * 64, session=name)
        request.sampling_params.extra_args = {"cachewise_class": name}
        scheduler.add_request(request)
    order: list[str] = []
    while scheduler.requests:
        order += [n for n in step(scheduler).num_scheduled_tokens if n not in order]
    assert order == ["first", "interactive", "batch"]


@pytest.mark.parametrize("seed", range(3))
def test_one_class_and_one_tenant_decide_as_none_at_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    for extra_args in (None, {"cachewise_class": "batch", "cachewise_tenant": "a"}):
        scheduler = make_scheduler(CacheWiseScheduler, num_blocks=60)
        ticks = count()
        scheduler.clock = lambda ticks=ticks: next(ticks) * 0.05

        def named(*args: Any, extra_args: Any = extra_args, **more: Any) -> Any:
            request = make_request(*args, **more)
            request.sampling_params.extra_args = extra_args
            return request

        monkeypatch.setattr(test_modes, "make_request", named)
        plan = test_modes.crowd(scheduler, seed, forecasts=True)
        plans.append((plan, Readings(scheduler._hook).parkings()))
    assert plans[0] == plans[1]
