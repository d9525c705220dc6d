"""The paper's curves: Kaplan-Meier against lifelines, and what a cluster learns."""

from __future__ import annotations

import numpy as np
import pytest
from cachewise_bench.policies.clusters import ClusterCurves, Curve
from cachewise_bench.workload import MAX_WAIT_S, ToolCall, Turn
from hypothesis import given
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter

_waits = st.lists(st.sampled_from([0.5, 1.0, 2.5, 7.0, 60.0, MAX_WAIT_S]), min_size=1, max_size=30)


@given(_waits)
def test_survival_is_kaplan_meiers(waits: list[float]) -> None:
    curve = Curve.kaplan_meier(waits)
    fitter = KaplanMeierFitter().fit(waits, [wait < MAX_WAIT_S for wait in waits])
    theirs = fitter.survival_function_at_times(curve.times_s).to_numpy()
    assert curve.survival == pytest.approx(theirs, abs=1e-12)


def test_the_remaining_wait_is_the_mean_of_what_the_longer_waits_have_left() -> None:
    waits = np.array([1.0, 2.0, 2.0, 10.0, 30.0])
    curve = Curve.kaplan_meier(waits)
    for elapsed in (0.0, 0.5, 1.0, 2.0, 9.0, 10.0, 29.0):
        assert curve.remaining_s(elapsed) == pytest.approx(
            (waits[waits > elapsed] - elapsed).mean()
        )
    assert curve.remaining_s(30.0) == 0.0
    assert curve.remaining_s(-1.0) == curve.remaining_s(0.0)


def _turn(command: str, wait_s: float) -> Turn:
    return Turn(100, 10, (ToolCall("Bash", command),), wait_s)


def test_commands_of_different_kinds_get_different_curves() -> None:
    fast = [_turn(f"git status {i % 3}", 0.1) for i in range(60)]
    slow = [_turn(f"docker compose build part{i % 3}", 60.0) for i in range(60)]
    curves = ClusterCurves.fit(fast + slow, 2)
    assert curves.curve([ToolCall("Bash", "git status")]).remaining_s(0) == pytest.approx(0.1)
    build = ToolCall("Bash", "docker compose build part1")
    assert curves.curve([build]).remaining_s(0) == pytest.approx(60)
    both = curves.curve([ToolCall("Bash", "git status"), build])
    assert both.remaining_s(0) == pytest.approx(60)


def test_an_unknown_tool_gets_the_curve_of_all_tools() -> None:
    curves = ClusterCurves.fit([_turn("ls", 1.0), _turn("make", 3.0)], 20)
    assert curves.curve([ToolCall("Unknown", "")]).remaining_s(0) == pytest.approx(2.0)


def test_without_training_every_session_is_due_at_once() -> None:
    assert ClusterCurves.fit([], 20).curve([ToolCall("Bash", "ls")]).remaining_s(0) == 0.0
