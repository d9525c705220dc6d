"""step-cost: what is measured, not how long it takes."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench import step_cost
from cachewise_bench.__main__ import main
from cachewise_bench.steady_load import RUNNING, Size, SteadyLoad
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from vllm.v1.core.sched.scheduler import Scheduler

SMALL = Size(blocks=400, sessions=12, waiting=5)


def plain(work: Any) -> Any:
    return work()


@pytest.mark.parametrize("kind", [Scheduler, CacheWiseScheduler])
def test_the_load_is_steady(kind: Any) -> None:
    load = SteadyLoad(kind, SMALL)
    for _ in range(300):
        requests = load.step(plain)
        assert 0 <= requests <= RUNNING
        assert len(load.scheduler.running) <= RUNNING
        assert len(load.scheduler.requests) <= SMALL.waiting + RUNNING
        assert len(load._away) + len(load._here) == SMALL.sessions + SMALL.waiting + RUNNING
    pool = load.scheduler.kv_cache_manager.block_pool
    cached = sum(block.block_hash is not None for block in pool.blocks)
    assert cached > 0.5 * SMALL.blocks, "the pool is full of prefixes"


def test_ours_decides_under_this_load_with_all_it_has() -> None:
    load = SteadyLoad(CacheWiseScheduler, SMALL)
    for _ in range(300):
        load.step(plain)
    hook = load.scheduler._hook
    assert Readings(hook).evicted()["forecast"] > 0 and hook.sessions.with_forecast > 0
    assert hook.active.displaced + hook.active.left > 0


def test_equal_arguments_give_equal_steps() -> None:
    steps = []
    for _ in range(2):
        load = SteadyLoad(CacheWiseScheduler, SMALL)
        steps.append([(load.step(plain), load.now) for _ in range(100)])
    assert steps[0] == steps[1]


def test_one_number_is_varied_at_a_time_and_at_last_all_are_largest() -> None:
    found = list(step_cost.sizes({}))
    assert [name for name, _ in found] == ["blocks"] * 3 + ["sessions"] * 3 + ["waiting"] * 3 + [
        "all"
    ]
    for name, size in found[:-1]:
        assert {k: v for k, v in size.items() if v != step_cost.BASE[k]}.keys() <= {name}
    assert found[-1][1] == {"blocks": 100_000, "sessions": 1_000, "waiting": 1_000}


def test_numbers_that_are_given_replace_the_usual_ones() -> None:
    assert list(step_cost.sizes({"blocks": [500], "waiting": [7]})) == [
        ("all", {"blocks": 500, "sessions": step_cost.BASE["sessions"], "waiting": 7})
    ]
    found = list(step_cost.sizes({"blocks": [500, 900], "waiting": [7]}))
    assert [(name, s["blocks"], s["waiting"]) for name, s in found] == [
        ("blocks", 500, 7),
        ("blocks", 900, 7),
    ]


def test_the_collectors_time_is_not_the_steps() -> None:
    watch = step_cost.Stopwatch()
    callbacks = list(gc.callbacks)

    def collecting() -> str:
        for _ in range(3):
            gc.collect()
        return "done"

    with watch:
        assert watch.time(collecting) == "done"
        watch.end_step()
        watch.time(lambda: None)
        watch.end_step()
    assert gc.callbacks == callbacks
    figures = watch.figures()
    assert figures["gc_max_us"] > figures["max_us"], "nearly all of the first step was collecting"
    assert figures["median_us"] <= figures["mean_us"] <= figures["max_us"]


def test_a_small_run_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    options = ["--blocks", "300,400", "--sessions", "6", "--waiting", "3", "--steps", "50"]
    assert main(["step-cost", *options, "--json", str(out)]) in (0, 1)
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    assert [(row["varied"], row["blocks"]) for row in rows] == [("blocks", 300), ("blocks", 400)]
    for row in rows:
        assert row["ratio"] > 0
        for who in ("stock", "ours"):
            assert 0 < row[who]["median_us"] <= row[who]["max_us"] and row[who]["requests"] > 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert main(["step-cost", "--json", str(tmp_path / "no" / "cost.json")]) == 1
