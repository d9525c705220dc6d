"""What a forecast of waits is worth for choosing a victim, and whether its curve is honest.

Choosing: ten intervals are open, and the method picks the one that it expects to be away longest.
    just started    all ten began this moment
    random moment   ten intervals drawn in proportion to their length, each at a uniform point of
                    it: what a scheduler meets when it looks at its idle sessions
    top1            share of draws whose pick is indeed the last to return
    share           the pick's remaining wait / the longest one, averaged over the draws
    concordance     share of the pairs within a draw that are in the right order (ties count half)
Honesty: if S is right, F(wait) of the waits is uniform (the probability integral transform).
    pit_ks          largest distance of its distribution from the uniform one
    coverage50/90   share of the waits that are at most their forecast's P50 / P90
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

DRAWS = 3_000
OPEN = 10


class Forecasts(Protocol):
    """Forecasts of all test intervals."""

    def remaining(self, interval: Indices, elapsed_s: Floats) -> Floats:
        """The expected remaining waits of these intervals after so many seconds."""

    def transform(self, wait_s: Floats) -> Floats | None:
        """F(wait) for each interval; None if the method gives no distribution."""


def evaluate(forecasts: Forecasts, wait_s: Floats, seed: int) -> dict[str, float | None]:
    """All figures of one method. The same seed gives the same draws."""
    rng = np.random.default_rng(seed)
    shape = (DRAWS, OPEN)
    fresh = rng.integers(len(wait_s), size=shape)
    met = rng.choice(len(wait_s), size=shape, p=wait_s / wait_s.sum())
    elapsed_s = rng.uniform(size=shape) * wait_s[met]
    return {
        **_choices("just_started", forecasts, fresh, np.zeros(shape), wait_s, rng),
        **_choices("random_moment", forecasts, met, elapsed_s, wait_s, rng),
        **_honesty(forecasts.transform(wait_s)),
    }


def _choices(
    moment: str,
    forecasts: Forecasts,
    drawn: Indices,
    elapsed_s: Floats,
    wait_s: Floats,
    rng: np.random.Generator,
) -> dict[str, float]:
    expected = forecasts.remaining(drawn.ravel(), elapsed_s.ravel()).reshape(drawn.shape)
    true = wait_s[drawn] - elapsed_s
    rows = np.arange(len(drawn))
    order = np.lexsort((rng.uniform(size=expected.shape), expected))  # equal ones by chance
    picked, longest = true[rows, order[:, -1]], true.max(axis=1)
    return {
        f"{moment}_top1": float((picked == longest).mean()),
        f"{moment}_share": float((picked / np.maximum(longest, 1e-9)).mean()),
        f"{moment}_concordance": _concordance(expected, true),
    }


def _concordance(expected: Floats, true: Floats) -> float:
    first, second = np.triu_indices(true.shape[1], 1)
    truth = np.sign(true[:, first] - true[:, second])
    guess = np.sign(expected[:, first] - expected[:, second])
    counted = truth != 0
    return float(((truth * guess)[counted].mean() + 1) / 2)


def _honesty(transformed: Floats | None) -> dict[str, float | None]:
    if transformed is None:
        return {"pit_ks": None, "coverage50": None, "coverage90": None}
    ordered = np.sort(transformed)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    return {
        "pit_ks": float(distance),
        "coverage50": float((transformed <= 0.5).mean()),
        "coverage90": float((transformed <= 0.9).mean()),
    }
