"""The ranking of the free blocks' groups: which one is wanted last, and so is the next victim.

A group is wanted as soon as the first of its owners returns. Ranks change with every moment, but
little in a short time: so each group has a bound, the largest rank that it may have for some time,
and stands in a heap by it. At each step only those at the top are looked at, until the bound of the
rest is below what was found. What is found is exactly what sorting all would give.

A bound is made when the group has been listed, when one of its owners may be away for longer than
was said, and when the last one's time is over: O(log groups). It holds for long and is loose; one
that comes to the top is replaced by a tight one, which holds for a second. The times are staggered,
so that no step has many to make. Nothing here costs anything per block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from cachewise_engine_hook.block_groups import Group, Groups

TIGHT_S, LOOSE_S = 1.0, 16.0
"""For how long a bound holds, or up to twice that."""
_STAGGER = 16
_ROUNDING = 1.0 + 1e-12
"""The largest of a window is computed otherwise than a rank in it."""


class Reuse(Protocol):
    """What is asked of the session table."""

    @property
    def can_rank(self) -> bool: ...

    def time_to_reuse(self, key: str, now: float) -> float: ...

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        """The largest that time_to_reuse will say from now until then, unless it is told news."""


_Rank = tuple[float, float, int]
"""Seconds until it is wanted; fewer owners before more; what was listed last before the rest."""

_Bound = tuple[float, int, Group, bool]
"""What it is sorted by, its number, its group, whether it is tight. It is void unless it is the
last one of its group."""


class Ranking:
    """Of the groups that are listed in `groups`; it is told of each that comes or goes."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._made = 0
        """Bounds so far: each has its number, and a group knows that of its last one."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing that was known of any group holds."""
        self._bounds: list[_Bound] = []
        """A heap by the bound's negative."""
        self._ends: list[_Bound] = []
        """A heap by the moment until which the bound holds."""
        self._news = dict.fromkeys(self._groups.by_owners.values())
        """Groups that need a bound."""

    def listed(self, group: Group) -> None:
        self._news[group] = None

    def unlisted(self, group: Group) -> None:
        self._news.pop(group, None)
        group.bound = 0

    def changed(self, owner: str) -> None:
        """The owner's time to reuse may be longer than it was said."""
        for group in self._groups.of(owner):
            self._news[group] = None

    def victim(self, reuse: Reuse, now: float) -> Group | None:
        """The group whose blocks go next; None if there is none."""
        self._renew_bounds(reuse, now)
        best: Group | None = None
        best_rank: _Rank = (-math.inf, -math.inf, 0)
        bounds, looked_at = self._bounds, []
        while bounds and -bounds[0][0] >= best_rank[0]:
            bound = heappop(bounds)
            _, number, group, is_tight = bound
            if number != group.bound:
                continue
            if not is_tight:
                self._bind(group, reuse, now, TIGHT_S)  # it is looked at if that is at the top
                continue
            looked_at.append(bound)
            if (rank := _rank(group, reuse, now)) > best_rank:
                best, best_rank = group, rank
        for bound in looked_at:
            heappush(bounds, bound)
        return best

    def in_order(self, reuse: Reuse, now: float) -> Iterator[Group]:
        """All groups, the next victim first."""
        key = lambda group: _rank(group, reuse, now)  # noqa: E731
        return iter(sorted(self._groups.by_owners.values(), key=key, reverse=True))

    # ---- steps ----------------------------------------------------------------------------------

    def _renew_bounds(self, reuse: Reuse, now: float) -> None:
        ends, news = self._ends, self._news
        while ends and ends[0][0] < now:
            _, number, group, _ = heappop(ends)
            if group.bound == number:
                news[group] = None
        for group in news:
            self._bind(group, reuse, now, LOOSE_S)
        news.clear()
        most = 2 * len(self._groups.by_owners) + _STAGGER
        for heap in (self._bounds, self._ends):
            if len(heap) > most:  # half of it is void
                heap[:] = [entry for entry in heap if entry[1] == entry[2].bound]
                heapify(heap)

    def _bind(self, group: Group, reuse: Reuse, now: float, seconds: float) -> None:
        self._made = group.bound = number = self._made + 1
        until = now + seconds * (1 + number % _STAGGER / _STAGGER)
        most_s = _most(group, reuse, now, until)
        is_tight = seconds == TIGHT_S
        heappush(self._bounds, (-most_s, number, group, is_tight))
        heappush(self._ends, (until, number, group, is_tight))


def _rank(group: Group, reuse: Reuse, now: float) -> _Rank:
    wanted_in_s = min([reuse.time_to_reuse(owner, now) for owner in group.owners])
    return (wanted_in_s, -math.inf if group.everybodys else -len(group.owners), group.listed)


def _most(group: Group, reuse: Reuse, now: float, until: float) -> float:
    return _ROUNDING * min([reuse.most_time_to_reuse(owner, now, until) for owner in group.owners])
