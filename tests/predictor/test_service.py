"""Flow 1 in memory: events in, forecasts and their quality out."""

from __future__ import annotations

import pytest
from cachewise_predictor.events import Event, SessionKey, ToolCall, TurnEnded, Wait
from cachewise_predictor.metrics import MAX_TOOL_LABELS
from cachewise_predictor.model import MAX_KINDS_PER_TENANT, Model
from cachewise_predictor.service import Predictor
from cachewise_predictor.sessions import TTL_S, Sessions
from cachewise_proto.redaction import MAX_ARGUMENT_CHARS

from .conftest import (
    KEY,
    Clock,
    ended,
    interval,
    make_predictor,
    sample,
    session_ended,
    started,
)

BASH = {"tool": "Bash", "source": "tool"}


def run_turn(predictor: Predictor, clock: Clock, number: int, wait_s: float) -> None:
    predictor.report([ended(f"t{number}")])
    clock.now += wait_s
    predictor.report([started(f"t{number + 1}")])


@pytest.fixture
def trained(predictor: Predictor) -> Predictor:
    predictor.model = Model().learn(interval(10.0, "Bash") for _ in range(200))
    return predictor


def checked(predictor: Predictor, **labels: str) -> float:
    name = "cachewise_predictor_checked_forecasts_total"
    return predictor.metrics.registry.get_sample_value(name, labels) or 0.0


def test_coverage_and_pit_are_counted_by_tool_and_source(trained: Predictor, clock: Clock) -> None:
    run_turn(trained, clock, 0, 0.01)
    assert checked(trained, **BASH) == 1
    assert sample(trained, "covered_forecasts_total", quantile="0.5", **BASH) == 1
    assert sample(trained, "forecast_pit_total", tenth="0", **BASH) == 1
    trained.report([Event(SessionKey("acme", "s2"), "x", 0.0, TurnEnded(Wait.HUMAN))])
    assert checked(trained, **BASH) == 1


def test_a_wait_beyond_the_quantiles_is_not_covered(trained: Predictor, clock: Clock) -> None:
    run_turn(trained, clock, 0, 5_000.0)
    assert sample(trained, "covered_forecasts_total", quantile="0.9", **BASH) == 0
    assert sample(trained, "forecast_pit_total", tenth="9", **BASH) == 1


def test_what_counts_is_the_forecast_that_was_made_not_that_of_a_later_model(
    trained: Predictor, clock: Clock
) -> None:
    trained.report([ended("t0")])
    clock.now += 1_000.0
    trained.model = Model().learn(interval(1_000.0, "Bash") for _ in range(200))
    trained.report([started("t1")])
    assert sample(trained, "covered_forecasts_total", quantile="0.9", **BASH) == 0


def test_a_wait_that_is_not_seen_to_end_counts_as_far_as_it_was_seen(
    trained: Predictor, clock: Clock
) -> None:
    trained.report([ended("t0")])
    clock.now += 1e-6
    trained.report([session_ended()])
    assert checked(trained, **BASH) == 1
    tenths = [sample(trained, "forecast_pit_total", tenth=str(n), **BASH) for n in range(10)]
    assert tenths == pytest.approx([0.1] * 10, abs=1e-3)


def test_a_wait_past_the_time_limit_is_measured_and_forgotten(
    trained: Predictor, clock: Clock
) -> None:
    trained.report([ended("t0")])
    clock.now += TTL_S + 1
    trained.expire()
    assert checked(trained, **BASH) == 1
    assert not trained._made


def test_a_wait_from_before_a_restart_is_measured_by_the_model_of_now(
    trained: Predictor, clock: Clock
) -> None:
    trained.report([ended("t0")])
    state = trained.sessions.get(KEY)
    assert state is not None
    successor = make_predictor(clock, Sessions())
    successor.model = trained.model
    successor.sessions.restore(KEY, state)
    successor.report([started("t1")])
    assert checked(successor, **BASH) == 1


def test_a_turn_whose_end_is_told_after_the_wait_had_no_forecast(
    trained: Predictor, clock: Clock
) -> None:
    trained.report([started("t1"), ended("t0", age_s=5.0)])
    assert sample(trained, "intervals_total", end="finished") == 1
    assert checked(trained, **BASH) == 0


def test_only_the_most_frequent_tools_have_labels(predictor: Predictor, clock: Clock) -> None:
    names = [f"tool-{n:02}" for n in range(MAX_TOOL_LABELS + 1)]
    some = [interval(1.0, name) for name in names for _ in range(3)]
    predictor.model = Model().learn([*some, interval(1.0, names[-1])])
    for number, name in enumerate((names[0], names[-2], names[-1])):
        predictor.report([ended(f"t{number}", tools=(name,)), started(f"t{number + 1}")])
    assert checked(predictor, tool=names[0], source="tool") == 1
    assert checked(predictor, tool=names[-1], source="tool") == 1
    assert checked(predictor, tool="(other)", source="tool") == 1
    predictor.model = Model().learn([interval(1.0, "Bash")])
    assert checked(predictor, tool=names[0], source="tool") == 0


def test_the_waits_of_a_session_change_its_next_forecasts_and_no_other_session_s(
    predictor: Predictor, clock: Clock
) -> None:
    predictor.report([ended("t0")])
    first = predictor.forecast(KEY).forecast
    for number in range(3):
        run_turn(predictor, clock, number, 300.0)
    other = SessionKey("acme", "other")
    predictor.report([ended("t9"), ended("t0", key=other)])
    own, others = predictor.forecast(KEY).forecast, predictor.forecast(other).forecast
    assert first is not None and own is not None and others is not None
    assert own.quantiles[0].wait_s > 30 > first.quantiles[0].wait_s
    assert others == first


def test_a_flood_of_tool_names_is_bounded(predictor: Predictor, clock: Clock) -> None:
    """In the model and in the labels; test_robustness.py learns 100,000 of them."""
    for number in range(1_000):
        predictor.report([ended(f"t{number}", tools=(f"tool-{number}",))])
        clock.now += 1.0
        predictor.report([started(f"t{number + 1}")])
    waits = [i for entry in predictor.journal.take(9).values() for i in entry.intervals]
    predictor.model = Model().learn(waits)
    predictor.report([ended("t1000", tools=("tool-0",)), started("t1001")])
    assert predictor.model.samples == len(waits) == 1_000
    assert len(predictor.model.rows) == 2 + MAX_KINDS_PER_TENANT
    (metric,) = predictor.metrics._checked.collect()
    assert len({s.labels["tool"] for s in metric.samples}) <= MAX_TOOL_LABELS + 1


def test_cut_arguments_and_dropped_calls_are_counted_once_per_turn(predictor: Predictor) -> None:
    lengths = (0, MAX_ARGUMENT_CHARS - 1, MAX_ARGUMENT_CHARS, MAX_ARGUMENT_CHARS)
    calls = tuple(ToolCall("Bash", "x" * length) for length in lengths)
    event = Event(KEY, "t0", 0.0, TurnEnded(Wait.TOOL, calls, dropped=3))
    predictor.report([event, event])
    assert sample(predictor, "tool_calls_total") == 4
    assert sample(predictor, "cut_arguments_total") == 2
    assert sample(predictor, "dropped_tool_calls_total") == 3
