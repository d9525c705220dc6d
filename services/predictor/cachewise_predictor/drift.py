"""When the waits of a tool change: ADWIN on the PIT of its forecasts, one detector per tool.

While the model is right the PIT of a tool's waits is uniform around 1/2; when its waits change, the
mean moves. ADWIN (Bifet and Gavalda, "Learning from time-changing data with adaptive windowing",
SIAM Data Mining 2007) keeps a window of values and looks at every way to cut it into an older part
of n0 values and a newer one of n1. There was a change if the two means differ by more than chance
allows, with confidence 1 - delta (section 3.1, the bound with the variance of the window):

    eps = sqrt(2/m * variance * ln(2/d)) + 2/(3m) * ln(2/d),   1/m = 1/n0 + 1/n1,   d = delta / cuts

Here the window is bounded, so its values are kept as they are instead of in ADWIN2's buckets; and
the cuts are at growing distances from its end, as there. The cut that exceeds its bound most tells
where the change was (the bucket version only drops buckets until no cut stands out, which keeps
much of the old part): what came before it is forgotten, here and by the trainer.

Only the most frequent tools of the serving model are watched, so that a flood of names costs
nothing. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from .events import Position
from .model import Group

DELTA = 0.002
WINDOW = 1_000
MAX_WATCHED = 100
_LEAST, _GROWTH = 5, 1.15
"""Values in the newer part: 5 at least, then 15 % more from cut to cut."""


def find_change(values: ArrayLike, delta: float = DELTA) -> int | None:
    """How many of the newest values came after a change of the mean; None if there was none.

    values: within 0..1, oldest first.
    """
    newest_first = np.asarray(values, float)[::-1]
    count = len(newest_first)
    newer = _NEWER[: np.searchsorted(_NEWER, count - _LEAST, side="right")]
    if not len(newer):
        return None
    older = count - newer
    sums = np.cumsum(newest_first)
    differences = np.abs(sums[newer - 1] / newer - (sums[-1] - sums[newer - 1]) / older)
    harmonic = newer * older / count
    certainty = np.log(2 * len(newer) / delta)
    bound = np.sqrt(2 / harmonic * newest_first.var() * certainty) + 2 / 3 / harmonic * certainty
    best = int((differences - bound).argmax())
    return int(newer[best]) if differences[best] > bound[best] else None


class DriftWatch:
    """The detectors. Positions are places in the stream of intervals."""

    def __init__(self) -> None:
        self._seen: dict[Group, _Seen] = {}

    def is_following(self, group: Group) -> bool:
        return group in self._seen

    def follow(self, groups: Iterable[Group]) -> set[Group]:
        """Watches the first MAX_WATCHED of these; gives those of which it has seen nothing."""
        wanted = list(groups)[:MAX_WATCHED]
        self._seen = {group: self._seen.get(group) or _Seen() for group in wanted}
        return {group for group, seen in self._seen.items() if not seen.positions}

    def restart(self, groups: Iterable[Group]) -> None:
        """Forgets what was seen: these have a new model now, and a new level of PIT with it."""
        for group in groups:
            if group in self._seen:
                self._seen[group] = _Seen()

    def add(self, group: Group, position: Position, pit: float) -> Position | None:
        """Takes one wait; gives the first position after a change if there was one."""
        seen = self._seen.get(group)
        if seen is None:
            return None
        seen.add(position, pit)
        newest = find_change(seen.values)
        if newest is None:
            return None
        seen.keep(newest)
        return seen.positions[0]


class _Seen:
    """The last WINDOW waits of a tool; values: packed, for each of them is looked at whenever one
    is added.
    """

    def __init__(self) -> None:
        self.positions, self.values = list[Position](), array("d")

    def add(self, position: Position, value: float) -> None:
        self.positions.append(position)
        self.values.append(value)
        self.keep(WINDOW)

    def keep(self, newest: int) -> None:
        surplus = max(len(self.positions) - newest, 0)
        del self.positions[:surplus], self.values[:surplus]


_NEWER = np.unique((_LEAST * _GROWTH ** np.arange(38)).astype(int))
