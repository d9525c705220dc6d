"""Right forecasts look right, wrong ones wrong; scores agree with integrals by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from cachewise_predictor import survival
from cachewise_predictor.quality import (
    PIT_BINS,
    SCORED_S,
    Pit,
    bins,
    covered,
    crps,
    has_score,
    pit,
    scaled,
    spread,
)
from cachewise_predictor.survival import BINS, GRID_S, MAX_WAIT_S, Floats
from hypothesis import given, settings
from hypothesis import strategies as st

curves = st.lists(st.floats(0.1, 0.6), min_size=BINS, max_size=BINS).map(
    lambda hazard: survival.log_survival(np.array(hazard))
)
waits = st.floats(0.0, 80_000.0)
probabilities = st.floats(0.01, 0.99)
few = settings(max_examples=15)
_COUNT = 500


def draw(curve: Floats, seed: int = 0) -> list[float]:
    """Waits that the curve is right about: spread evenly over its quantiles, in any order."""
    chances = np.random.default_rng(seed).permutation((np.arange(_COUNT) + 0.5) / _COUNT)
    return [survival.quantile(curve, float(chance)) for chance in chances]


def histogram(pits: list[Pit]) -> Floats:
    counts = np.zeros(PIT_BINS)
    for value in pits:
        for number, share in bins(value):
            counts[number] += share
    return counts / len(pits)


@few
@given(curves)
def test_the_pit_of_a_right_model_is_uniform(curve: Floats) -> None:
    pits = [pit(curve, wait, True) for wait in draw(curve)]
    assert histogram(pits) == pytest.approx(np.full(PIT_BINS, 0.1), abs=0.03)


@few
@given(curves, curves)
def test_it_stays_uniform_when_waits_are_censored_at_random(curve: Floats, other: Floats) -> None:
    pits = [
        pit(curve, min(wait, limit), wait <= limit)
        for wait, limit in zip(draw(curve, 1), draw(other, 2), strict=True)
    ]
    assert histogram(pits) == pytest.approx(np.full(PIT_BINS, 0.1), abs=0.05)


@few
@given(curves, st.sampled_from([0.1, 10.0]))
def test_it_is_not_uniform_when_waits_change_tenfold(curve: Floats, factor: float) -> None:
    pits = [pit(curve, wait * factor, True) for wait in draw(curve)]
    assert np.abs(np.cumsum(histogram(pits) - 0.1)).max() > 0.1


@given(curves, waits, st.booleans(), probabilities)
def test_a_wait_is_covered_if_it_is_at_most_the_quantile(
    curve: Floats, wait: float, is_finished: bool, probability: float
) -> None:
    value = pit(curve, wait, is_finished)
    share = covered(value, probability)
    limit = survival.quantile(curve, probability)
    if limit < MAX_WAIT_S and wait > limit * (1 + 1e-6):
        assert share == pytest.approx(0.0, abs=1e-6)
    elif is_finished and wait < limit * (1 - 1e-6):
        assert share == 1.0
    assert 0.0 <= share <= 1.0


@given(curves, waits, st.booleans())
def test_a_wait_counts_once(curve: Floats, wait: float, is_finished: bool) -> None:
    value = pit(curve, wait, is_finished)
    assert sum(share for _, share in bins(value)) == pytest.approx(1.0)
    assert 0.0 <= value.low <= value.middle <= value.high <= 1.0


@few
@given(curves, waits)
def test_the_score_is_the_integral_of_its_definition(curve: Floats, wait: float) -> None:
    fine = np.linspace(0, scaled(np.array(SCORED_S)), 100_001)
    middle = (fine[1:] + fine[:-1]) / 2
    expected = np.interp(middle, scaled(GRID_S), -np.expm1(curve))
    difference = np.where(middle < scaled(np.array(wait)), expected, 1 - expected)
    integral = float((difference**2).sum() * (fine[1] - fine[0]))
    assert crps(curve[None], [wait])[0] == pytest.approx(integral, abs=1e-3)


@few
@given(curves, curves)
def test_no_other_forecast_scores_better_than_the_right_one(right: Floats, wrong: Floats) -> None:
    seconds = draw(right)
    own, other = (crps(np.tile(curve, (_COUNT, 1)), seconds).mean() for curve in (right, wrong))
    assert own <= other + 0.01


def test_waits_that_are_censored_early_have_no_score() -> None:
    assert has_score(1.0, True)
    assert has_score(SCORED_S, False)
    assert not has_score(SCORED_S - 1, False)


@given(st.lists(waits, min_size=2, max_size=30))
def test_the_spread_is_half_the_mean_difference_of_all_pairs(seconds: list[float]) -> None:
    values = scaled(np.minimum(seconds, SCORED_S))
    pairs = [abs(a - b) for i, a in enumerate(values) for b in values[:i]]
    assert spread(seconds) == pytest.approx(float(np.mean(pairs)) / 2, abs=1e-9)
    assert spread(seconds[:1]) == 0.0
