"""What a forecast is worth at a moment: the remaining wait of a session that is away.

A forecast is a curve of the expected remaining wait over the time already waited,
E[T - t | T > t]. The engine evaluates it at the present elapsed time whenever it must choose, so a
rank ages correctly with no RPC. Between the curve's points it is interpolated. Beyond its last
point the remaining wait grows in proportion to the elapsed time, as it does under a Pareto tail,
and is never less than the time since that point: a hung tool becomes more evictable with time, it
never "returns now".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """Remaining wait in seconds at ascending elapsed times in seconds, the first of them 0.

    Raises ValueError where the curve cannot be one.
    """

    elapsed_s: tuple[float, ...]
    remaining_s: tuple[float, ...]
    source: str = "unspecified"
    sample_count: int = 0
    model_version: str = ""

    def __post_init__(self) -> None:
        if not self.elapsed_s or len(self.elapsed_s) != len(self.remaining_s):
            raise ValueError("a forecast needs as many remaining waits as elapsed times, and one")
        if self.elapsed_s[0] != 0 or any(
            not a < b for a, b in zip(self.elapsed_s, self.elapsed_s[1:], strict=False)
        ):
            raise ValueError("a forecast's elapsed times must ascend from 0")
        if not all(math.isfinite(r) and r >= 0 for r in self.remaining_s):
            raise ValueError("a forecast's remaining waits must be finite and not negative")
        if not math.isfinite(self.elapsed_s[-1]):
            raise ValueError("a forecast's elapsed times must be finite")

    def remaining(self, elapsed_s: float) -> float:
        """Expected remaining wait in seconds of a session that has been away for elapsed_s."""
        xs, ys = self.elapsed_s, self.remaining_s
        if elapsed_s <= 0:
            return ys[0]
        if elapsed_s >= xs[-1]:
            grown_s = ys[-1] * (elapsed_s / xs[-1]) if xs[-1] > 0 else ys[-1] + elapsed_s
            return max(grown_s, elapsed_s - xs[-1])
        i = bisect_right(xs, elapsed_s)
        share = (elapsed_s - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + share * (ys[i] - ys[i - 1])

    def most_remaining(self, elapsed_s: float, until_s: float) -> float:
        """The largest that `remaining` is from elapsed_s to until_s: at an end or at a point."""
        inside = self.remaining_s[
            bisect_right(self.elapsed_s, elapsed_s) : bisect_right(self.elapsed_s, until_s)
        ]
        return max(self.remaining(elapsed_s), self.remaining(until_s), *inside)


def remaining_without_forecast(idle_s: float) -> float:
    """Expected remaining wait of a session that nothing is known of but how long it has been away.

    Waits are heavy-tailed, so it grows with the time away: among such sessions the order is LRU.
    """
    return max(idle_s, 0.0)
