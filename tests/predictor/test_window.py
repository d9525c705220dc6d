"""The recent window: each interval once, bounded, with a reserve that is the same everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachewise_predictor.events import Interval, Position, Wait
from cachewise_predictor.model import Group
from cachewise_predictor.window import RESERVED, LeftOut, StoredInterval, Window
from hypothesis import given
from hypothesis import strategies as st

from .conftest import interval

BASH = Group("acme", Wait.TOOL, "Bash")


def stored(number: int, *tools: str, tenant: str = "acme", is_live: bool = True) -> StoredInterval:
    made = replace(interval(1.0, *tools, tenant=tenant), turn=f"turn {number}")
    return StoredInterval(Position(number, 0), made, is_live)


def filled(count: int, *tools: str, window: Window | None = None) -> Window:
    window = Window() if window is None else window
    for number in range(count):
        window.add(stored(number, *(tools or ("Bash",))))
    return window


def positions(window: Window) -> list[int]:
    return [entry.position.ms for entry in window]


@given(st.lists(st.integers(0, 20)))
def test_an_interval_that_comes_again_counts_once(numbers: list[int]) -> None:
    window = Window()
    added = [window.add(stored(number)) is not None for number in numbers]
    assert sum(added) == len(window) == len(set(numbers))
    assert window.add(stored(3, tenant="other")) is not None


@given(st.integers(1, 50), st.integers(0, 200))
def test_the_oldest_leave_when_there_are_too_many(most: int, count: int) -> None:
    window = filled(count, window=Window(most=most))
    assert positions(window) == list(range(max(count - most, 0), count))


def test_the_old_leave() -> None:
    window = filled(10_000, window=Window(max_age_s=3.0))
    window.expire(now=10.0)
    assert positions(window) == list(range(7_000, 10_000))


def test_what_is_reserved_is_not_learned_and_nothing_is_lost() -> None:
    window = filled(1_000)
    learned = window.learnable({})
    assert len(learned) + len(window.reserve) == 1_000
    assert len(window.reserve) == pytest.approx(1_000 / RESERVED, rel=0.3)
    again = Window()
    for number in reversed(range(1_000)):
        again.add(stored(number))
    assert {e.interval.turn for e in again.reserve} == {e.interval.turn for e in window.reserve}


def test_intervals_of_trace_files_are_learned_and_do_not_judge() -> None:
    window = Window()
    for number in range(100):
        window.add(stored(number, is_live=False))
    assert (len(window.learnable({})), window.reserve) == (100, [])


def test_parts_are_left_out_by_position_and_tenant() -> None:
    window = filled(10)
    for number in range(10, 20):
        window.add(stored(number, tenant="other"))
    window.leave_out([LeftOut("acme", Position(2, 0), Position(15, 0))])
    assert positions(window) == [0, 1, 2, *range(10, 20)]
    window.leave_out([LeftOut(None, Position(0, 0), Position(11, 0))])
    assert positions(window) == [0, *range(12, 20)]


def test_what_a_tool_was_before_it_changed_is_cut_for_good_or_for_a_trial() -> None:
    window = filled(10)
    for number in range(10, 20):
        window.add(stored(number, "Read"))
    changes = {BASH: Position(7, 0)}
    trial: list[Interval] = window.learnable(changes)
    assert len(window) == 20
    window.cut(changes)
    assert positions(window) == [7, 8, 9, *range(10, 20)]
    assert window.learnable({}) == trial
