"""How long a wait lasts, as a survival curve on a fixed grid of elapsed times.

A curve is told by its hazards: h[j] is the chance that a wait which has reached GRID_S[j] ends
before GRID_S[j + 1]. They are the Kaplan-Meier estimate d/n, with waits that were never seen to
end (censored) at risk only up to the last grid time that they passed. Few data are pulled towards
a parent curve, h = (d + KAPPA * h_parent) / (n + KAPPA): where a curve has nobody at risk it goes
on with its parent's hazards, in the end with the tail of the prior.

Between grid times the curve is a power of time (log S linear in log t), and so beyond the last
one: waits have heavy tails. The expected remaining wait counts the next HORIZON_S seconds, E[min(T
- t, HORIZON_S) | T > t]: it stays finite where the mean would not, and since the window moves with
t, a hung tool's remaining wait grows with its age.

Everything here is numpy on arrays of the grid's size; "log survival" is log S at the grid times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

GRID_S: Floats = np.concatenate(([0.0], np.geomspace(0.05, 86_400.0, 31)))
BINS = len(GRID_S) - 1
HORIZON_S = 3_600.0
KAPPA = 15.0
"""Weight of the parent curve, in waits at risk. The trial of baselines.md used 15 as well."""

MAX_WAIT_S = 30 * 86_400.0
"""Quantiles of a tail that never falls end here."""

_GRID = GRID_S.tolist()
_LEAST_HAZARD, _MOST_HAZARD = 1e-9, 1 - 1e-9


def finished_bin(seconds: float) -> int | None:
    """The bin (GRID_S[j], GRID_S[j + 1]] in which a wait ended; None beyond the grid."""
    index = max(bisect_left(_GRID, seconds) - 1, 0)
    return index if index < BINS else None


def censored_bin(seconds: float) -> int:
    """Number of bins that a wait of unknown end is known to have survived, 0 to BINS."""
    return bisect_right(_GRID, seconds) - 1


def at_risk(finished: Counts, censored: Counts) -> Counts:
    """Waits that reached each bin.

    finished: BINS counts by bin of the end; censored: BINS + 1 by bins survived.
    """
    leaving = finished + censored[1:]
    return np.cumsum(leaving[::-1])[::-1]


def hazards(finished: Counts, censored: Counts, parent: Floats, kappa: float = KAPPA) -> Floats:
    """Kaplan-Meier hazards per bin, shrunk towards the parent's."""
    shrunk = (finished + kappa * parent) / (at_risk(finished, censored) + kappa)
    return np.clip(shrunk, _LEAST_HAZARD, _MOST_HAZARD)


def tilt(hazard: Floats, kind: Floats, overall: Floats) -> Floats:
    """hazard, changed in proportion as `kind` differs from `overall` (cumulative hazards
    multiplied bin by bin).
    """
    ratio = np.log1p(-kind) / np.log1p(-overall)
    tilted = -np.expm1(np.log1p(-hazard) * ratio)
    return np.asarray(np.clip(tilted, _LEAST_HAZARD, _MOST_HAZARD))


def log_survival(hazard: Floats) -> Floats:
    """log S at the grid times."""
    return np.concatenate(([0.0], np.cumsum(np.log1p(-hazard))))


def longest(curves: Sequence[Floats]) -> Floats:
    """log survival of the maximum of independent waits: S = 1 - prod(1 - S_i)."""
    if len(curves) == 1:
        return curves[0]
    with np.errstate(divide="ignore"):  # S_i(0) = 1: log(1 - S_i) = -inf, and S(0) = 1
        log_all_over = np.sum([np.log(-np.expm1(curve)) for curve in curves], axis=0)
    return np.asarray(np.log(-np.expm1(log_all_over)))


def quantile(curve: Floats, probability: float) -> float:
    """The wait that is not exceeded with this probability (0 < p < 1), at most MAX_WAIT_S."""
    target = np.log1p(-probability)
    segment = min(int(np.count_nonzero(curve > target)) - 1, BINS)
    if segment == 0:
        return float(GRID_S[1] * probability / -np.expm1(curve[1]))
    exponent = max(float(_exponents(curve)[segment]), 1e-12)
    growth = (curve[segment] - target) / exponent
    longest_growth = np.log(MAX_WAIT_S / GRID_S[segment])
    return float(GRID_S[segment] * np.exp(min(growth, longest_growth)))


def log_chance_over(curve: Floats, seconds: float) -> float:
    """log S(seconds)."""
    segment = min(censored_bin(seconds), BINS)
    if segment == 0:
        return float(np.log1p(seconds / GRID_S[1] * np.expm1(curve[1])))
    exponent = _exponents(curve)[segment]
    return float(curve[segment] - exponent * np.log(seconds / GRID_S[segment]))


def expected_remaining(curve: Floats) -> Floats:
    """E[min(T - t, HORIZON_S) | T > t] in seconds, at each grid time t: integral of S from t to t
    + HORIZON_S, over S(t).
    """
    exponents = _exponents(curve)
    relative = np.exp(np.minimum(curve[None, :] - curve[:, None], 0.0))  # S(segment start) / S(t)
    whole = _integrals(curve, exponents, np.arange(BINS), GRID_S[1:])
    cut = _integrals(curve, exponents, _CUT_SEGMENT, GRID_S + HORIZON_S)
    reach_cut = relative[np.arange(BINS + 1), _CUT_SEGMENT]
    return np.asarray((relative[:, :BINS] * _IS_WHOLE) @ whole + reach_cut * cut)


def _exponents(curve: Floats) -> Floats:
    """a of S = S_j (t / GRID_S[j])^-a per segment.

    The last goes on beyond the grid; the first is linear and has none.
    """
    inner = -np.diff(curve[1:]) / _LOG_RATIO
    return np.concatenate(([np.nan], inner, inner[-1:]))


def _integrals(
    curve: Floats, exponents: Floats, segments: NDArray[np.int64], end_s: Floats
) -> Floats:
    """Integral of S(u) / S(GRID_S[j]) from GRID_S[j] to end_s, for each segment j."""
    start_s = np.maximum(GRID_S[segments], GRID_S[1])
    rest, log_ratio = 1 - exponents[segments], np.log(end_s / start_s)
    is_log = np.abs(rest) < 1e-9
    power = start_s * np.expm1(rest * log_ratio) / np.where(is_log, 1.0, rest)
    linear = GRID_S[1] * (1 + np.exp(curve[1])) / 2
    return np.where(segments == 0, linear, np.where(is_log, start_s * log_ratio, power))


_LOG_RATIO = np.diff(np.log(GRID_S[1:]))
_CUT_SEGMENT = np.searchsorted(GRID_S, GRID_S + HORIZON_S, side="right") - 1
"""The segment in which the horizon of each grid time lies; BINS is the tail beyond the grid."""

_T, _SEGMENT = np.indices((BINS + 1, BINS))
_CUT_OF_T = _CUT_SEGMENT[_T]
_IS_WHOLE = (_T <= _SEGMENT) & (_SEGMENT < _CUT_OF_T)
