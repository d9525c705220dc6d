"""Flow 1 in memory: events in, forecasts and their quality out."""

from __future__ import annotations

from cachewise_predictor.events import Event, SessionKey, ToolCall, TurnEnded, Wait
from cachewise_predictor.model import Model
from cachewise_predictor.service import Predictor

from .conftest import KEY, Clock, ended, interval, sample, started


def run_turn(predictor: Predictor, clock: Clock, number: int, wait_s: float) -> None:
    predictor.report([ended(f"t{number}")])
    clock.now += wait_s
    predictor.report([started(f"t{number + 1}")])


def test_coverage_is_counted_by_source_and_quantile(predictor: Predictor, clock: Clock) -> None:
    predictor.model = Model().learn(interval(10.0, "Bash") for _ in range(200))
    run_turn(predictor, clock, 0, 0.01)
    assert sample(predictor, "checked_forecasts_total", source="tool") == 1
    assert sample(predictor, "covered_forecasts_total", source="tool", quantile="0.5") == 1
    predictor.report([Event(SessionKey("acme", "s2"), "x", 0.0, TurnEnded(Wait.HUMAN))])
    assert sample(predictor, "checked_forecasts_total", source="tool") == 1


def test_a_wait_beyond_the_quantiles_is_not_covered(predictor: Predictor, clock: Clock) -> None:
    predictor.model = Model().learn(interval(10.0, "Bash") for _ in range(200))
    run_turn(predictor, clock, 0, 5_000.0)
    assert sample(predictor, "checked_forecasts_total", source="tool") == 1
    assert sample(predictor, "covered_forecasts_total", source="tool", quantile="0.9") == 0


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
    intervals = [interval(1.0, ToolCall(f"tool-{n}", f'{{"a": "x{n}y"}}')) for n in range(100_000)]
    predictor.model = predictor.model.learn(intervals)
    assert len(predictor.model.rows) < 1_000
    assert predictor.model.samples == 100_000
