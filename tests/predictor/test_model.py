"""Levels, shrinkage and bounds of the model."""

import json
import random
import time

import pytest
from cachewise_predictor.events import Forecast, Interval, Source, ToolCall, Wait
from cachewise_predictor.evidence import remember
from cachewise_predictor.model import MAX_KINDS_PER_TENANT, MAX_TENANTS, Group, Model
from cachewise_predictor.model_file import from_bytes, to_bytes

from .conftest import calls, interval


def median(forecast: Forecast) -> float:
    return forecast.quantiles[0].wait_s


def bash(model: Model, tenant: str = "acme") -> Forecast:
    return model.forecast(tenant, Wait.TOOL, calls("Bash"))


def command(text: str) -> ToolCall:
    return ToolCall("Bash", json.dumps({"command": text}))


def shell(seconds: float, text: str) -> Interval:
    return interval(seconds, command(text))


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
    other_order = model.forecast("acme", Wait.TOOL, calls("mcp__x", "Bash"))
    assert other_order.remaining_s == both.remaining_s
    assert (other_order.source, other_order.sample_count) == (both.source, both.sample_count)


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
    flood = [interval(1.0, f"tool-{i}") for i in range(3 * MAX_KINDS_PER_TENANT)]
    flood += [interval(1.0, "x", tenant=f"tenant-{i}") for i in range(3 * MAX_TENANTS)]
    model = Model().learn(flood)
    assert len(model.rows) <= 1 + 2 * (MAX_TENANTS + MAX_KINDS_PER_TENANT)
    assert model.samples == len(flood)


def test_what_the_arguments_say_counts_more_than_the_tool() -> None:
    model = Model().learn(
        [shell(30.0 + i % 5, f"cargo test case{i}") for i in range(40)]
        + [shell(0.1 + i / 1_000, f"git status -s {i}") for i in range(400)]
    )
    slow, fast, unknown = (
        model.forecast("acme", Wait.TOOL, (command(text),))
        for text in ("cargo test", "git status", "frobnicate")
    )
    assert median(slow) > 20 > 1 > median(fast)
    assert (slow.source, slow.sample_count) == (Source.CLUSTER, 40)
    assert unknown.source is Source.TOOL


def test_the_waits_that_a_session_has_had_are_evidence() -> None:
    model = Model().learn(shell(0.2, "make") for _ in range(100))
    call = command("make")
    recent = remember(remember((), (call,), 60.0), (call,), 62.0)
    own = model.forecast("acme", Wait.TOOL, (call,), recent)
    assert median(own) == pytest.approx(60, rel=0.3)
    assert median(model.forecast("acme", Wait.TOOL, (command("ls"),), recent)) < 30
    assert own.source is Source.CLUSTER


def test_fitted_clusters_of_arguments_are_levels_of_their_own() -> None:
    texts = [("alpha beta", 1.0), ("gamma delta", 50.0)] * 60
    intervals = [interval(s, ToolCall("Ask", f"{text} {i}")) for i, (text, s) in enumerate(texts)]
    model = Model.fit(intervals).learn(intervals)
    names = [
        level.name for level in model.levels("acme", Wait.TOOL, ToolCall("Ask", "delta gamma"))
    ]
    assert any(name.startswith("cluster ") for name in names)
    forecasts = [
        model.forecast("acme", Wait.TOOL, (ToolCall("Ask", text),))
        for text in ("alpha beta", "gamma delta")
    ]
    assert median(forecasts[0]) < 5 < 20 < median(forecasts[1])


def test_commands_are_bounded_and_hostile_arguments_do_no_harm() -> None:
    hostile = ["", "\x00\ud800", "\\" * 400, '{"command":"' + "(" * 380, "cd a;" * 80, "&" * 400]
    intervals = [interval(1.0, ToolCall("Bash", text)) for text in hostile]
    intervals += [shell(1.0, f"x{i}y") for i in range(300)]
    model = Model.fit(intervals).learn(intervals)
    restored = from_bytes(to_bytes(model))
    for text in hostile:
        call = ToolCall("Bash", text)
        assert restored.forecast("acme", Wait.TOOL, (call,)).remaining_s[0] > 0


def test_a_known_forecast_takes_microseconds_of_the_processor_and_a_new_one_a_millisecond() -> None:
    model = Model().learn(interval(1.0 + i, f"tool-{i % 50}") for i in range(2_000))
    start = time.process_time()
    for i in range(50):
        model.forecast("acme", Wait.TOOL, calls(f"tool-{i}"))
    fresh_s = (time.process_time() - start) / 50
    start = time.process_time()
    for i in range(50):
        model.forecast("acme", Wait.TOOL, calls(f"tool-{i}"))
    known_s = (time.process_time() - start) / 50
    assert fresh_s < 2e-3
    assert known_s < 1e-4
