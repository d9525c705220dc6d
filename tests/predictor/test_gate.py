"""The gate: better models pass, worse ones and those of random waits do not."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import pytest
from cachewise_predictor.events import START, Position, ToolCall
from cachewise_predictor.gate import Verdict, concordance, judge
from cachewise_predictor.model import Model
from cachewise_predictor.window import Changes, StoredInterval, Window
from hypothesis import given
from hypothesis import strategies as st

from .conftest import interval

SECONDS = {"true": 0.3, "npm test": 20.0, "make": 90.0, "git push": 3.0, "sleep 300": 300.0}
"""Median waits of commands."""

Wait = Callable[[str, random.Random], float]


def usual(command: str, rng: random.Random) -> float:
    return SECONDS[command] * rng.lognormvariate(0.0, 0.7)


def tenfold(command: str, rng: random.Random) -> float:
    return 10 * usual(command, rng)


def anything(command: str, rng: random.Random) -> float:
    return float(10 ** rng.uniform(-2, 3.5))


def minutes(command: str, rng: random.Random) -> float:
    return rng.uniform(0, 600)


def some(command: str, rng: random.Random) -> float:
    return usual(rng.choice(list(SECONDS)), rng)


class Stream:
    """Fills a window."""

    def __init__(self) -> None:
        self.window, self.rng, self.numbers = Window(), random.Random(0), itertools.count()

    def add(self, count: int, wait: Wait, tenant: str = "acme") -> Position:
        """The position of the first of them."""
        start = Position(next(self.numbers), 0)
        for _ in range(count):
            command = self.rng.choice(list(SECONDS))
            call = ToolCall("Bash", json.dumps({"command": command}))
            made = interval(wait(command, self.rng), call, tenant=tenant)
            self.window.add(StoredInterval(Position(next(self.numbers), 0), made))
        return start

    def train(self, changes: Changes | None = None) -> Model:
        return Model().learn(self.window.learnable(changes or {}))

    def judge(
        self, candidate: Model, serving: Model, trained_to: Position, changes: Changes | None = None
    ) -> Verdict:
        now = Position(next(self.numbers), 0)
        return judge(candidate, serving, list(self.window), trained_to, now, changes or {})


def batch_after(count: int, wait: Wait, changes: bool = False) -> Verdict:
    """The verdict on a model of 1,000 usual waits and then some others."""
    stream = Stream()
    stream.add(1_000, usual)
    serving, trained_to = stream.train(), Position(next(stream.numbers), 0)
    start = stream.add(count, wait)
    group = next(iter(stream.window)).group
    seen: Changes = {group: start} if changes else {}
    return stream.judge(stream.train(seen), serving, trained_to, seen)


@pytest.mark.parametrize("count", [1, 10, 100, 1_000])
def test_more_of_the_same_passes(count: int) -> None:
    assert batch_after(count, usual).refusal == ""


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("wait", [anything, minutes, some])
@pytest.mark.parametrize("count", [300, 1_000])
def test_a_batch_of_random_waits_is_refused_and_left_out(
    count: int, wait: Wait, changes: bool
) -> None:
    verdict = batch_after(count, wait, changes)
    assert verdict.refusal == "spoiled by random waits"
    (part,) = verdict.spoiled
    assert part.tenant == "acme"
    assert part.after.ms <= 1_001
    assert part.to.ms > 1_000 + count


def test_after_a_change_a_model_of_what_came_since_passes() -> None:
    verdict = batch_after(80, tenfold, changes=True)
    assert verdict.refusal == ""
    assert verdict.score is not None and verdict.serving_score is not None
    assert verdict.score < 0.7 * verdict.serving_score


def test_a_worse_model_is_refused() -> None:
    stream = Stream()
    stream.add(1_000, usual)
    good, trained_to = stream.train(), Position(next(stream.numbers), 0)
    stream.add(50, usual)
    bad = Model().learn(interval(500.0, "Bash") for _ in range(500))
    verdict = stream.judge(bad, good, trained_to)
    assert verdict.refusal == "worse on recent intervals"
    assert stream.judge(good, bad, trained_to).refusal == ""


def test_a_gain_on_new_waits_does_not_pay_for_what_was_right() -> None:
    stream = Stream()
    stream.add(300, usual)
    good, trained_to = stream.train(), Position(next(stream.numbers), 0)
    stream.add(600, tenfold)
    verdict = stream.judge(stream.train(), good, trained_to)
    assert verdict.refusal == "worse on intervals that were known"
    assert verdict.spoiled == ()


def test_one_tenant_s_random_waits_are_left_out_of_its_part_only() -> None:
    stream = Stream()
    for tenant in ("acme", "good"):
        stream.add(500, usual, tenant)
    serving, trained_to = stream.train(), Position(next(stream.numbers), 0)
    stream.add(300, usual, "good")
    stream.add(300, anything, "acme")
    verdict = stream.judge(stream.train(), serving, trained_to)
    assert [part.tenant for part in verdict.spoiled] == ["acme"]
    stream.window.leave_out(verdict.spoiled)
    assert stream.judge(stream.train(), serving, trained_to).refusal == ""


def test_without_anything_to_judge_by_a_model_passes() -> None:
    assert judge(Model(), Model(), [], START, START, {}) == Verdict("")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_concordance_counts_pairs(points: list[tuple[int, int]]) -> None:
    expected, seconds = [float(a) for a, _ in points], [float(b) for _, b in points]
    right, pairs = 0.0, 0
    for (a, b), (c, d) in itertools.combinations(points, 2):
        if b != d:
            pairs += 1
            right += 0.5 if a == c else (a < c) == (b < d)
    assert concordance(expected, seconds) == pytest.approx(right / pairs if pairs else 0.5)
