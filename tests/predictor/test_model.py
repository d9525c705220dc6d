"""Levels, shrinkage, bounds and the stored form of the model."""

import random
import time

import numpy as np
import pytest
from cachewise_predictor.errors import ModelError
from cachewise_predictor.events import Forecast, Source, Wait
from cachewise_predictor.model import MAX_TENANTS, MAX_TOOLS_PER_TENANT, Group, Model
from safetensors.numpy import load, save

from .conftest import calls, interval


def median(forecast: Forecast) -> float:
    return forecast.quantiles[0].wait_s


def bash(model: Model, tenant: str = "acme") -> Forecast:
    return model.forecast(tenant, Wait.TOOL, calls("Bash"))


def test_without_data_the_forecast_is_the_published_curve_of_the_tool() -> None:
    forecast = bash(Model())
    assert (forecast.source, forecast.sample_count, forecast.model_version) == (
        Source.PRIOR,
        0,
        "prior",
    )
    assert median(forecast) == pytest.approx(0.41, rel=0.1)
    assert len(forecast.elapsed_s) == len(forecast.remaining_s) == 32


def test_a_tool_with_data_follows_them_and_others_follow_the_tenant_and_then_all_tenants() -> None:
    model = Model().learn(interval(50.0 + i % 7, "Bash") for i in range(500))
    own, other_tool = bash(model), model.forecast("acme", Wait.TOOL, calls("mcp__x"))
    elsewhere = model.forecast("other", Wait.TOOL, calls("mcp__x"))
    assert (own.source, own.sample_count) == (Source.TOOL, 500)
    assert median(own) == pytest.approx(53, rel=0.3)
    assert (other_tool.source, elsewhere.source) == (Source.TENANT, Source.GLOBAL)
    assert median(other_tool) > 10
    assert median(elsewhere) > 10
    assert median(model.forecast("acme", Wait.TOOL, calls("Read"))) < median(other_tool)


def test_few_data_move_the_forecast_a_little() -> None:
    few = Model().learn([interval(100.0, "Bash")] * 3)
    many = Model().learn([interval(100.0, "Bash")] * 300)
    assert median(bash(Model())) < median(bash(few)) < median(bash(many))


def test_waits_for_a_person_and_cut_turns_have_curves_of_their_own() -> None:
    model = Model().learn(interval(1_000.0, wait=Wait.HUMAN) for _ in range(200))
    human = model.forecast("acme", Wait.HUMAN, ())
    assert (human.source, human.sample_count) == (Source.TENANT, 200)
    assert median(human) == pytest.approx(1_000, rel=0.4)
    assert bash(model).source is Source.PRIOR
    assert model.forecast("acme", Wait.LENGTH, ()).source is Source.PRIOR


def test_parallel_calls_are_slower_than_each_and_only_as_sure_as_the_least_known() -> None:
    model = Model().learn(interval(5.0, "Bash") for _ in range(100))
    both = model.forecast("acme", Wait.TOOL, calls("Bash", "mcp__x"))
    assert median(both) >= median(bash(model))
    assert (both.source, both.sample_count) == (Source.TENANT, 100)
    assert model.forecast("acme", Wait.TOOL, calls("mcp__x", "Bash")) is both


def test_a_turn_with_several_calls_counts_for_the_slowest_of_them() -> None:
    model = Model().learn([interval(60.0, "Read", "Task", "Read")])
    assert model.row(Group("acme", Wait.TOOL, "Task")).samples == 1
    assert model.row(Group("acme", Wait.TOOL, "Read")).samples == 0
    assert model.row(Group("acme", Wait.TOOL)).samples == 1


def test_censored_waits_lengthen_the_forecast() -> None:
    finished = [interval(5.0, "Bash") for _ in range(50)]
    hung = [interval(600.0, "Bash", is_finished=False) for _ in range(50)]
    with_hung, without = bash(Model().learn(finished + hung)), bash(Model().learn(finished))
    assert with_hung.remaining_s[0] > 10 * without.remaining_s[0]


def test_learning_leaves_the_old_model_as_it_was_and_changes_the_version() -> None:
    first = Model().learn([interval(1.0, "Bash")])
    version, before = first.version, bash(first)
    second = first.learn([interval(1.0, "Bash")])
    assert (first.samples, second.samples) == (1, 2)
    assert second.version != version == first.version
    assert bash(first) is before


def test_the_order_and_grouping_of_intervals_do_not_matter() -> None:
    rng = random.Random(0)
    intervals = [interval(rng.expovariate(0.1), rng.choice(["a", "b"])) for _ in range(200)]
    at_once = Model().learn(intervals)
    rng.shuffle(intervals)
    in_parts = Model().learn(intervals[:70]).learn(intervals[70:])
    assert at_once.version == in_parts.version


def test_tenants_and_tools_are_bounded_but_still_count_above() -> None:
    flood = [interval(1.0, f"tool-{i}") for i in range(3 * MAX_TOOLS_PER_TENANT)]
    flood += [interval(1.0, "x", tenant=f"tenant-{i}") for i in range(3 * MAX_TENANTS)]
    model = Model().learn(flood)
    assert len(model.rows) <= 1 + 2 * (MAX_TENANTS + MAX_TOOLS_PER_TENANT)
    assert model.samples == len(flood)


def test_a_model_survives_being_stored() -> None:
    model = Model().learn(
        [
            interval(3.0, "Bäsh\x00'\"", tenant=""),
            interval(9.0, wait=Wait.HUMAN, is_finished=False),
        ]
    )
    restored = Model.from_bytes(model.to_bytes())
    assert restored.version == model.version
    assert restored.forecast("acme", Wait.HUMAN, ()) == model.forecast("acme", Wait.HUMAN, ())
    assert Model.from_bytes(Model().to_bytes()).version == "prior"


def damaged_models() -> list[bytes]:
    blob = Model().learn([interval(1.0, "Bash")]).to_bytes()
    arrays = load(blob)
    negative = save({**arrays, "finished": arrays["finished"] - 1})
    other_grid = save({**arrays, "grid_s": arrays["grid_s"] * 2})
    short = save({**arrays, "censored": arrays["censored"][:-1]})
    floats = save({**arrays, "finished": arrays["finished"].astype(np.float64)})
    no_json = save({**arrays, "note": np.zeros(5, np.uint8)})
    not_object = save({**arrays, "note": np.frombuffer(b"[1]", np.uint8)})
    return [b"", b"x" * 100, blob[:-9], negative, other_grid, short, floats, no_json, not_object]


@pytest.mark.parametrize("blob", damaged_models())
def test_a_damaged_model_is_refused(blob: bytes) -> None:
    with pytest.raises(ModelError):
        Model.from_bytes(blob)


def test_a_known_forecast_takes_microseconds_and_a_new_one_well_under_a_millisecond() -> None:
    model = Model().learn(interval(1.0 + i, f"tool-{i % 50}") for i in range(2_000))
    start = time.perf_counter()
    for i in range(50):
        model.forecast("acme", Wait.TOOL, calls(f"tool-{i}"))
    fresh_s = (time.perf_counter() - start) / 50
    start = time.perf_counter()
    for i in range(50):
        model.forecast("acme", Wait.TOOL, calls(f"tool-{i}"))
    known_s = (time.perf_counter() - start) / 50
    assert fresh_s < 2e-3
    assert known_s < 1e-4
