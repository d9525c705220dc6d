"""The fixed-order bound, against every possible eviction and against LRU."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

from cachewise_bench.policies.belady import least_misses
from hypothesis import given
from hypothesis import strategies as st

_short = st.lists(st.integers(0, 4), max_size=10)


@given(_short, st.integers(1, 3))
def test_no_choice_of_victims_misses_less(uses: list[int], capacity: int) -> None:
    @cache
    def best(position: int, resident: frozenset[int]) -> int:
        if position == len(uses):
            return 0
        block = uses[position]
        if block in resident:
            return best(position + 1, resident)
        if len(resident) < capacity:
            return 1 + best(position + 1, resident | {block})
        return 1 + min(best(position + 1, resident - {v} | {block}) for v in resident)

    assert least_misses(uses, capacity) == best(0, frozenset())


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 20))
def test_lru_misses_at_least_as_often(uses: list[int], capacity: int) -> None:
    resident: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for block in uses:
        misses += block not in resident
        resident[block] = None
        resident.move_to_end(block)
        if len(resident) > capacity:
            resident.popitem(last=False)
    assert least_misses(uses, capacity) <= misses
