"""How honest forecasts are, measured when a wait ends. Pure.

    PIT        the share of the waits that was forecast to be shorter, F(wait): uniform on 0..1 if
               forecasts are right (Dawid 1984; Gneiting, Balabdaoui and Raftery, JRSS B 69, 2007)
    coverage   the share of the waits that were at most a quantile p: those whose PIT is at most p
    CRPS       integral of (F(x) - [wait <= x])^2 dx, a proper score, 0 is perfect (Gneiting and
               Raftery, JASA 102, 2007, section 4.2); here x is on the scale of `scaled`: twice as
               long counts the same for a second as for an hour

A censored wait is longer than what was seen of it. Its PIT lies between F(seen) and 1, and is
spread evenly over that: a right forecast stays uniform, whatever censors. The score looks no
further than SCORED_S (a weighted CRPS, proper as well: Gneiting and Ranjan, JBES 29, 2011), so a
wait that was seen for that long has one; others that are censored have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import survival
from .events import Source
from .survival import GRID_S, HORIZON_S, Floats

PIT_BINS = 10
SHORTEST_S = 0.1
"""Differences below this are none to an engine."""

SCORED_S = float(GRID_S[np.searchsorted(GRID_S, HORIZON_S)])


class Pit(NamedTuple):
    """Where the PIT of a wait lies: low == high for a finished one."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class MadeForecast:
    """What is kept of a forecast until its wait ends. log_survival: at survival.GRID_S."""

    turn: str
    source: Source
    log_survival: NDArray[Any]


def pit(log_survival: NDArray[Any], seconds: float, is_finished: bool) -> Pit:
    curve = log_survival.astype(np.float64)
    expected = -float(np.expm1(survival.log_chance_over(curve, seconds)))
    expected = min(max(expected, 0.0), 1.0)
    return Pit(expected, expected if is_finished else 1.0)


def bins(value: Pit) -> Iterator[tuple[int, float]]:
    """The tenths of 0..1 in which the PIT lies, and how much of it in each."""
    first = min(int(value.low * PIT_BINS), PIT_BINS - 1)
    width = value.high - value.low
    if width <= 0:
        yield first, 1.0
        return
    for number in range(first, PIT_BINS):
        low, high = max(number / PIT_BINS, value.low), min((number + 1) / PIT_BINS, value.high)
        if high > low:
            yield number, (high - low) / width


def covered(value: Pit, probability: float) -> float:
    """1 if the wait was at most this quantile, 0 if not, a part of it if it was censored before."""
    if value.high <= probability:
        return 1.0
    return max(probability - value.low, 0.0) / (value.high - value.low or 1.0)


def scaled(seconds: Floats) -> Floats:
    """The scale of the score: linear up to about SHORTEST_S, then logarithmic."""
    return np.asarray(np.log1p(seconds / SHORTEST_S))


def has_score(seconds: float, is_finished: bool) -> bool:
    return is_finished or seconds >= SCORED_S


def crps(curves: Floats, seconds: Sequence[float]) -> Floats:
    """The score of each wait (n), for curves (n, len(GRID_S)) of log survival; only for waits that
    have a score. F is taken as linear on the scale within each bin of the grid.
    """
    expected = -np.expm1(curves[:, : len(_SCALE)])
    left, right = expected[:, :-1], expected[:, 1:]
    at = scaled(np.asarray(seconds, float))[:, None]
    share = np.clip((at - _SCALE[:-1]) / _WIDTHS, 0.0, 1.0)
    middle = left + (right - left) * share
    before = share * _mean_square(left, middle)
    after = (1 - share) * _mean_square(1 - middle, 1 - right)
    return np.asarray(((before + after) * _WIDTHS).sum(axis=1))


def spread(seconds: Sequence[float]) -> float:
    """The CRPS that these waits would have if each were forecast by all of them alike: half their
    mean difference (Gneiting and Raftery, equation 21).
    """
    values = np.sort(np.minimum(scaled(np.asarray(seconds, float)), _SCALE[-1]))
    n = len(values)
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return float((ranks * values).sum() / (n * (n - 1))) if n > 1 else 0.0


def _mean_square(a: Floats, b: Floats) -> Floats:
    """The mean of the square of a line from a to b."""
    return (a * a + a * b + b * b) / 3


_SCALE = scaled(GRID_S[GRID_S <= SCORED_S])
_WIDTHS = np.diff(_SCALE)
