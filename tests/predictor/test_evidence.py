"""A session's own waits move its forecasts, within bounds."""

from __future__ import annotations

from cachewise_predictor import evidence, prior, survival
from cachewise_predictor.events import ToolCall
from cachewise_predictor.evidence import RECENT, remember


def call(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("Bash", f'{{"command": "{command}"}}'),)


def median(recent: evidence.Recent, command: str) -> float:
    hazard = evidence.sharpen(prior.OVERALL, recent, call(command))
    return survival.quantile(survival.log_survival(hazard), 0.5)


def test_the_same_command_counts_most_then_the_same_action_then_any_call_of_the_kind() -> None:
    recent = remember((), call("cargo test -p a"), 60.0)
    same, action, other = (median(recent, c) for c in ("cargo test -p a", "cargo test", "ls"))
    assert same > action > other > median((), "ls")


def test_the_newest_waits_win() -> None:
    recent: evidence.Recent = ()
    for seconds in (100.0, 100.0, 100.0, 1.0, 1.0, 1.0):
        recent = remember(recent, call("make"), seconds)
    assert median(recent, "make") < 2


def test_memory_is_bounded_per_command_and_in_all() -> None:
    recent: evidence.Recent = ()
    for number in range(10 * RECENT):
        recent = remember(recent, call(f"tool{chr(97 + number % 26)} x"), float(number))
    assert len(recent) == 52
    for number in range(10 * RECENT):
        recent = remember(recent, (ToolCall("Read", "x" * number),), float(number))
    assert len(recent) == RECENT


def test_a_wait_of_days_is_evidence_of_a_long_one() -> None:
    recent = remember(remember((), call("make"), 1e6), call("make"), 1e6)
    assert median(recent, "make") > 3_600
