"""How long a wait lasts, as a survival curve on a fixed grid of elapsed times.

A curve is told by its hazards: h[j] is the chance that a wait which has reached GRID_S[j] ends
before GRID_S[j + 1]. They are the Kaplan-Meier estimate d/n, with waits that were never seen to
end (censored) at risk only up to the last grid time that they passed. Few data are pulled towards
a parent curve, h = (d + KAPPA * h_parent) / (n + KAPPA): where a curve has nobody at risk it goes
on with its parent's hazards, in the end with the tail of the prior.

Between grid times the curve is a power of time (log S linear in log t), and so beyond the last
one: waits have heavy tails.

The remaining wait is made for choosing who stays away longest. Waits count up to HORIZON_S: whether
a session returns after two hours or tomorrow is the same to its blocks. One that is older than that
is expected to stay for another part of its age, so a hung tool is ever more evictable. And it is
the mean of square roots, squared: a plain mean is ruled by the one wait in a hundred that hangs,
and ranks a tool that always takes 20 s behind one that mostly takes 0.2 s. On held-out sessions
this picks the longest of ten in 63 % of the draws where the plain mean does in 58 %.

Everything here is numpy on arrays of the grid's size; "log survival" is log S at the grid times.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Weights = Counts | Floats
"""Counts, or counts spread over neighbouring bins."""

GRID_S: Floats = np.concatenate(([0.0, 0.01], np.geomspace(0.05, 86_400.0, 61)))
"""Times 27 % apart: many tools always take about as long, and bins twice as wide misplace their
medians (on held-out sessions 46.8 % of the waits were below them, and now 48.9 %).
"""

BINS = len(GRID_S) - 1
TOLD = slice(None, None, 2)
"""The grid times at which engines are told the remaining wait: it changes more slowly."""

HORIZON_S = 3_600.0
OVERDUE = 1.25
"""A wait of t seconds, t beyond the horizon, counts up to OVERDUE * t."""

POWER = 0.5
KAPPA = 15.0
"""Weight of the parent curve, in waits at risk. The trial of baselines.md used 15 as well."""

LATE_S, LATE_KAPPA = 60.0, 20.0

MAX_WAIT_S = 30 * 86_400.0
"""Quantiles of a tail that never falls end here."""

_GRID: list[float] = GRID_S.tolist()
_LEAST_HAZARD, _MOST_HAZARD = 1e-9, 1 - 1e-9


def finished_bin(seconds: float) -> int | None:
    """The bin (GRID_S[j], GRID_S[j + 1]] in which a wait ended; None beyond the grid."""
    index = max(bisect_left(_GRID, seconds) - 1, 0)
    return index if index < BINS else None


def censored_bin(seconds: float) -> int:
    """Number of bins that a wait of unknown end is known to have survived, 0 to BINS."""
    return bisect_right(_GRID, seconds) - 1


def at_risk(finished: Weights, censored: Weights) -> Weights:
    """Waits that reached each bin.

    finished: BINS counts by bin of the end; censored: BINS + 1 by bins survived.
    """
    leaving = finished + censored[1:]
    return leaving[::-1].cumsum()[::-1]


def hazards(
    finished: Weights, censored: Weights, parent: Floats, kappa: float | Floats = KAPPA
) -> Floats:
    """Kaplan-Meier hazards per bin, shrunk towards the parent's; kappa may differ by bin."""
    return shrunk(finished, at_risk(finished, censored), parent, kappa)


def shrunk(finished: Weights, reached: Weights, parent: Floats, kappa: float | Floats) -> Floats:
    """The same. reached: waits at risk."""
    hazard = (finished + kappa * parent) / (reached + kappa)
    # Twice as fast as np.clip on arrays this small.
    return np.asarray(np.minimum(np.maximum(hazard, _LEAST_HAZARD), _MOST_HAZARD))


def cautious(kappa: float) -> Floats:
    """kappa per bin, at least LATE_KAPPA from LATE_S on: few waits are that long, and how long they
    get depends less on the call than on the place.
    """
    return np.where(GRID_S[:-1] < LATE_S, kappa, max(kappa, LATE_KAPPA))


def tilt(hazard: Floats, kind: Floats, overall: Floats) -> Floats:
    """hazard, changed in proportion as `kind` differs from `overall` (cumulative hazards
    multiplied bin by bin), up to LATE_S.
    """
    ratio = np.log1p(-kind) / np.log1p(-overall)
    tilted = np.clip(-np.expm1(np.log1p(-hazard) * ratio), _LEAST_HAZARD, _MOST_HAZARD)
    return np.where(GRID_S[:-1] < LATE_S, tilted, hazard)


def log_survival(hazard: Floats) -> Floats:
    """log S at the grid times."""
    curve = np.zeros(BINS + 1)
    np.log1p(-hazard).cumsum(out=curve[1:])
    return curve


def longest(curves: Sequence[Floats]) -> Floats:
    """log survival of the maximum of independent waits: S = 1 - prod(1 - S_i)."""
    if len(curves) == 1:
        return curves[0]
    # S_i(0) = 1: log(1 - S_i) = -inf, and S(0) = 1. And where all S_i are too small for 1 - S_i to
    # differ from 1, the largest of them has to do.
    with np.errstate(divide="ignore"):
        log_all_over = np.sum([np.log(-np.expm1(curve)) for curve in curves], axis=0)
        combined = np.log(-np.expm1(log_all_over))
    return np.asarray(np.maximum(combined, np.max(curves, axis=0)))


def quantile(curve: Floats, probability: float) -> float:
    """The wait that is not exceeded with this probability (0 < p < 1), at most MAX_WAIT_S."""
    target = math.log1p(-probability)
    segment = min(int(np.count_nonzero(curve > target)) - 1, BINS)
    if segment == 0:
        return _GRID[1] * probability / -math.expm1(curve[1])
    growth = (float(curve[segment]) - target) / max(_exponent(curve, segment), 1e-12)
    return _GRID[segment] * math.exp(min(growth, math.log(MAX_WAIT_S / _GRID[segment])))


def log_chance_over(curve: Floats, seconds: float) -> float:
    """log S(seconds)."""
    segment = min(censored_bin(seconds), BINS)
    if segment == 0:
        return math.log1p(seconds / _GRID[1] * math.expm1(curve[1]))
    exponent = _exponent(curve, segment)
    return float(curve[segment]) - exponent * math.log(seconds / _GRID[segment])


def remaining(curve: Floats, power: float = POWER) -> Floats:
    """The remaining wait X in seconds that is expected at each grid time t, given T > t.

    X = min(T, max(HORIZON_S, OVERDUE * t)) - t, and its power mean E[X^power]^(1 / power).
    """
    reached = np.exp(curve)  # at least 1e-289, since hazards are
    ends_in = reached.copy()
    ends_in[:-1] *= -np.expm1(curve[1:] - curve[:-1])
    powers = _REMAINING_POWER if power == POWER else _REMAINING_S**power
    return np.asarray((powers @ ends_in / reached) ** (1 / power))


def _exponent(curve: Floats, segment: int) -> float:
    """a of S = S_j (t / GRID_S[j])^-a in segment j > 0; the last goes on beyond the grid."""
    left = min(segment, BINS - 1)
    return float(curve[left] - curve[left + 1]) / _LOG_RATIO[left - 1]


_LOG_RATIO: list[float] = np.diff(np.log(GRID_S[1:])).tolist()
_MIDDLE_S = np.append(np.sqrt(np.maximum(GRID_S[:-1], GRID_S[1] / 2) * GRID_S[1:]), MAX_WAIT_S)
_REMAINING_S = np.triu(
    np.maximum(
        np.minimum(_MIDDLE_S, np.maximum(HORIZON_S, OVERDUE * GRID_S)[:, None]) - GRID_S[:, None],
        0.0,
    )
)
"""Row t: the remaining wait at that grid time if the wait ends in the bin of the column; 0 in those
before it.
"""
_REMAINING_POWER = _REMAINING_S**POWER
