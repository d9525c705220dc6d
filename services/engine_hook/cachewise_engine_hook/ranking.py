"""The ranking of the free blocks' groups: which one is wanted last, and so is the next victim.

A group is wanted as soon as the first of its owners returns. Ranks change with every moment, but
little in a short time: so all groups are sorted once for the next second by the largest rank that
each may have in it, and at each step only those at the top are looked at, until the largest rank
of the rest is below what was found. What is found is exactly what sorting anew would give.

Sorting costs O(groups), and a few groups belong to each session; a look at the top is nearly always
O(1). Nothing here costs anything per block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from cachewise_engine_hook.block_groups import Group

WINDOW_S = 1.0
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


class Ranking:
    """groups: those that hold a block. It is looked at anew after `changed` only."""

    def __init__(self, groups: Mapping[frozenset[str], Group]) -> None:
        self._groups = groups
        self._window: list[tuple[float, Group]] | None = None
        self._ends_at = -math.inf

    def changed(self) -> None:
        """A group has been listed, or a session's time to reuse may be longer than it was said."""
        self._window = None

    def victim(self, reuse: Reuse, now: float) -> Group | None:
        """The group whose blocks go next; None if there is none."""
        best: Group | None = None
        best_rank: _Rank = (-math.inf, -math.inf, 0)
        window = self._window_from(reuse, now)
        while window and not window[-1][1].blocks:
            window.pop()
        for most_s, group in reversed(window):
            if most_s < best_rank[0]:
                break
            if group.blocks and (rank := _rank(group, reuse, now)) > best_rank:
                best, best_rank = group, rank
        return best

    def in_order(self, reuse: Reuse, now: float) -> Iterator[Group]:
        """All groups, the next victim first."""
        key = lambda group: _rank(group, reuse, now)  # noqa: E731
        return iter(sorted(self._groups.values(), key=key, reverse=True))

    def _window_from(self, reuse: Reuse, now: float) -> list[tuple[float, Group]]:
        if self._window is None or now > self._ends_at:
            self._ends_at = now + WINDOW_S
            self._window = [(_most(g, reuse, now), g) for g in self._groups.values()]
            self._window.sort(key=_first)
        return self._window


def _rank(group: Group, reuse: Reuse, now: float) -> _Rank:
    wanted_in_s = min([reuse.time_to_reuse(owner, now) for owner in group.owners])
    return (wanted_in_s, -math.inf if group.everybodys else -len(group.owners), group.listed)


def _most(group: Group, reuse: Reuse, now: float) -> float:
    until = now + WINDOW_S
    return _ROUNDING * min([reuse.most_time_to_reuse(owner, now, until) for owner in group.owners])


def _first(item: tuple[float, Group]) -> float:
    return item[0]
