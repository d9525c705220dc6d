"""Curves against lifelines, against brute-force integration, and their laws."""

import numpy as np
import pytest
from cachewise_predictor import prior, survival
from cachewise_predictor.survival import BINS, GRID_S, HORIZON_S, LATE_S, OVERDUE, Counts, Floats
from hypothesis import given, settings
from hypothesis import strategies as st

waits = st.floats(0, GRID_S[-1])
observations = st.lists(st.tuples(waits, st.booleans()), min_size=1, max_size=60)
some_hazards = st.lists(st.floats(1e-6, 0.95), min_size=BINS, max_size=BINS).map(np.array)


def count(pairs: list[tuple[float, bool]]) -> tuple[Counts, Counts]:
    finished, censored = np.zeros(BINS, np.int64), np.zeros(BINS + 1, np.int64)
    for seconds, is_finished in pairs:
        if is_finished:
            end = survival.finished_bin(seconds)
            assert end is not None
            finished[end] += 1
        else:
            censored[survival.censored_bin(seconds)] += 1
    return finished, censored


def share_longer(curve: Floats, time_s: Floats) -> Floats:
    """S at any time, straight from the definition: linear, then powers of time."""
    powers = np.exp(np.interp(np.log(np.maximum(time_s, GRID_S[1])), np.log(GRID_S[1:]), curve[1:]))
    slope = (curve[-1] - curve[-2]) / np.log(GRID_S[-1] / GRID_S[-2])
    beyond = np.exp(curve[-1] + slope * np.log(np.maximum(time_s / GRID_S[-1], 1)))
    linear = 1 - (1 - np.exp(curve[1])) * time_s / GRID_S[1]
    return np.where(time_s <= GRID_S[1], linear, np.where(time_s > GRID_S[-1], beyond, powers))


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40)  # lifelines takes its time
@given(observations)
def test_without_shrinkage_the_curve_is_the_kaplan_meier_curve_of_lifelines(
    pairs: list[tuple[float, bool]],
) -> None:
    from lifelines import KaplanMeierFitter

    finished, censored = count(pairs)
    curve = np.exp(
        survival.log_survival(survival.hazards(finished, censored, np.full(BINS, 0.5), 1e-9))
    )
    on_grid = [
        GRID_S[survival.finished_bin(s) + 1] if is_finished else GRID_S[survival.censored_bin(s)]
        for s, is_finished in pairs
    ]
    fitter = KaplanMeierFitter().fit(on_grid, [is_finished for _, is_finished in pairs])
    has_data = np.append(True, survival.at_risk(finished, censored) > 0)
    expected = fitter.survival_function_at_times(GRID_S).to_numpy()
    np.testing.assert_allclose(curve[has_data], expected[has_data], atol=1e-6)


@given(st.lists(waits, min_size=1, max_size=60))
def test_without_censoring_the_curve_is_the_share_of_longer_waits(seconds: list[float]) -> None:
    finished, censored = count([(s, True) for s in seconds])
    curve = survival.log_survival(survival.hazards(finished, censored, np.full(BINS, 0.5), 1e-9))
    expected = [np.mean(np.array(seconds) > t) if t else 1.0 for t in GRID_S]
    np.testing.assert_allclose(np.exp(curve), expected, atol=1e-6)


@given(some_hazards, st.sampled_from([0.5, 1.0]))
def test_the_remaining_wait_is_the_power_mean_over_sampled_waits(
    hazard: Floats, power: float
) -> None:
    curve = survival.log_survival(hazard)
    fast = survival.remaining(curve, power)
    for index in range(0, BINS, 5):
        horizon_s = max(HORIZON_S, OVERDUE * GRID_S[index])
        edges = np.append(GRID_S[index:], 1e9)
        ends = np.append(np.diff(-np.exp(curve[index:] - curve[index])), 0.0)
        ends[-1] = 1 - ends.sum()
        middles = np.sqrt(np.maximum(edges[:-1], GRID_S[1] / 2) * edges[1:])
        left_s = np.maximum(np.minimum(middles, horizon_s) - GRID_S[index], 0.0)
        assert fast[index] == pytest.approx((ends @ left_s**power) ** (1 / power), rel=1e-6)


@given(some_hazards)
def test_a_remaining_wait_is_positive_and_within_the_horizon(hazard: Floats) -> None:
    remaining = survival.remaining(survival.log_survival(hazard))
    assert np.all(remaining > 0)
    assert np.all(remaining <= np.maximum(HORIZON_S, OVERDUE * GRID_S) - GRID_S + 1e-6)


@given(some_hazards, waits)
def test_the_chance_of_a_longer_wait_is_read_from_the_curve(hazard: Floats, seconds: float) -> None:
    curve = survival.log_survival(hazard)
    chance = np.exp(survival.log_chance_over(curve, seconds))
    assert chance == pytest.approx(share_longer(curve, np.array([seconds]))[0], rel=1e-6, abs=1e-12)


@given(some_hazards, st.floats(0.01, 0.99))
def test_a_quantile_is_the_time_that_this_share_does_not_exceed(hazard: Floats, p: float) -> None:
    curve = survival.log_survival(hazard)
    wait_s = survival.quantile(curve, p)
    if wait_s < survival.MAX_WAIT_S * 0.999:
        assert share_longer(curve, np.array([wait_s]))[0] == pytest.approx(1 - p, rel=1e-6)


@given(st.lists(some_hazards, min_size=1, max_size=5))
def test_parallel_calls_wait_for_the_longest(hazards: list[Floats]) -> None:
    curves = [survival.log_survival(hazard) for hazard in hazards]
    expected = 1 - np.prod([1 - np.exp(curve) for curve in curves], axis=0)
    np.testing.assert_allclose(np.exp(survival.longest(curves)), expected, atol=1e-12)
    assert np.all(survival.longest(curves) >= np.max(curves, axis=0) - 1e-9)


def test_the_maximum_of_sampled_waits_has_the_combined_curve() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.exponential(5, 40_000), rng.pareto(1.5, 40_000) * 3
    curves = [np.log([max(np.mean(w > t), 1e-12) for t in GRID_S]) for w in (first, second)]
    longest = np.maximum(first, second)
    expected = [np.mean(longest > t) for t in GRID_S]
    np.testing.assert_allclose(np.exp(survival.longest(curves)), expected, atol=0.01)


@given(st.lists(st.floats(0.01, 200), min_size=1, max_size=300))
def test_a_tool_that_hangs_for_an_hour_is_expected_to_stay_ever_longer(
    seconds: list[float],
) -> None:
    finished, censored = count([(s, True) for s in seconds])
    curve = survival.log_survival(survival.hazards(finished, censored, prior.OVERALL))
    remaining = survival.remaining(curve)
    beyond = remaining[int(np.searchsorted(GRID_S, HORIZON_S / OVERDUE)) :]
    assert np.all(np.diff(beyond) > 0)
    assert beyond[0] > 100


@given(observations, st.floats(0.1, 1_000))
def test_shrinkage_stays_between_the_data_and_the_parent(
    pairs: list[tuple[float, bool]], kappa: float
) -> None:
    finished, censored = count(pairs)
    n = survival.at_risk(finished, censored)
    own = np.divide(finished, n, out=prior.OVERALL.copy(), where=n > 0)
    shrunk = survival.hazards(finished, censored, prior.OVERALL, kappa)
    assert np.all(shrunk >= np.minimum(own, prior.OVERALL) - 1e-8)
    assert np.all(shrunk <= np.maximum(own, prior.OVERALL) + 1e-8)
    np.testing.assert_allclose(shrunk[n == 0], prior.OVERALL[n == 0])


def test_tilting_the_overall_curve_gives_the_kind_and_no_difference_changes_nothing() -> None:
    kind, own = prior.tool_hazards("Task"), np.full(BINS, 0.3)
    tilted, early = survival.tilt(prior.OVERALL, kind, prior.OVERALL), GRID_S[:-1] < LATE_S
    np.testing.assert_allclose(tilted, np.where(early, kind, prior.OVERALL))
    np.testing.assert_allclose(survival.tilt(own, kind, kind), own)


def test_waits_beyond_the_grid_are_censored_at_its_end() -> None:
    assert survival.finished_bin(GRID_S[-1] + 1) is None
    assert survival.censored_bin(1e12) == BINS
    assert survival.finished_bin(0) == 0
    assert survival.censored_bin(0) == 0
