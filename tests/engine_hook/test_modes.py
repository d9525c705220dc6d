"""Staged adoption: what each mode may change, over vLLM's real scheduler."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cachewise_engine_hook.config import MODES, ConfigError
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tests.engine_hook.test_scheduler import LONG, SHORT, forecast, resident, turn
from tests.engine_hook.vllm_scheduler import make_request, make_scheduler, run, step


def crowd(scheduler: Any, seed: int, forecasts: bool) -> list[tuple[str, int]]:
    """Sessions that together want twice the pool, some at once; (request, tokens) per step."""
    rng = random.Random(seed)
    lengths = {f"s{i}": rng.randint(60, 200) for i in range(8)}
    plan: list[tuple[str, int]] = []
    for turn_index in range(5):
        for name in rng.sample(list(lengths), 5):
            lengths[name] += rng.randint(16, 60)
            tokens = [int(name[1:]) + 1] * lengths[name]
            scheduler.add_request(make_request(f"{name}-{turn_index}", tokens, session=name))
        while scheduler.requests:
            plan += sorted(step(scheduler).num_scheduled_tokens.items())
        for name in lengths if forecasts else ():
            forecast(scheduler, name, (LONG, SHORT)[int(name[1:]) % 2])
    return plan


@pytest.mark.parametrize("seed", range(5))
def test_observe_schedules_and_evicts_as_stock_does_and_says_what_would_differ(seed: int) -> None:
    observing = make_scheduler(CacheWiseScheduler, num_blocks=60, settings={"mode": "observe"})
    stock = make_scheduler(Scheduler, num_blocks=60)
    assert crowd(observing, seed, forecasts=True) == crowd(stock, seed, forecasts=False)
    readings = Readings(observing._hook)
    assert readings.evicted()["forecast"] == 0 < readings.evicted()["stock"]
    assert set(readings.observed_differences()) == {"held_back", "reordered", "evicted_from_active"}
    assert sum(readings.observed_differences().values()) > 0


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "observe"])
def test_the_other_modes_observe_nothing(mode: str) -> None:
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=60, settings={"mode": mode})
    crowd(scheduler, 0, forecasts=True)
    assert set(Readings(scheduler._hook).observed_differences().values()) == {0}


def test_order_lets_the_resident_prefix_go_first_and_leaves_eviction_to_stock() -> None:
    settings = {"mode": "order"}
    scheduler = make_scheduler(CacheWiseScheduler, num_blocks=50, step_tokens=16, settings=settings)
    warm = turn(scheduler, "warm", [1] * 320, "warm")
    turn(scheduler, "other", [2] * 320, "other")
    forecast(scheduler, "warm", SHORT)
    forecast(scheduler, "other", LONG)
    cold = make_request("cold", [3] * 400, session="cold")
    again = make_request("again", [1] * 336, session="warm")
    scheduler.add_request(cold)
    scheduler.add_request(again)
    assert list(step(scheduler).num_scheduled_tokens) == ["again"]
    run(scheduler)
    assert scheduler._hook.active.parked == 0
    assert Readings(scheduler._hook).evicted()["forecast"] == 0
    assert resident(scheduler, warm) <= 20


def test_an_unknown_mode_stops_start_up() -> None:
    with pytest.raises(ConfigError, match="mode must be observe or order or full, not 'shadow'"):
        make_scheduler(CacheWiseScheduler, settings={"mode": "shadow"})
