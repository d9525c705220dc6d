"""The ranking against sorting anew at every moment, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from cachewise_engine_hook.block_groups import Group, Groups
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.ranking import Ranking
from cachewise_engine_hook.sessions import ForecastUpdate, SessionTable, everybodys_owner
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import KVCacheBlock

CURVES = (
    Forecast((0.0, 2.0), (5.0, 3.0)),
    Forecast((0.0, 0.5, 1.0, 5.0), (1.0, 9.0, 0.0, 4.0)),
    Forecast((0.0,), (2.0,)),
)


class CountedTable(SessionTable):
    """A session table that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.asked: Counter[str] = Counter()

    def time_to_reuse(self, key: str, now: float, by_forecast: bool = True) -> float:
        self.asked["now"] += 1
        return super().time_to_reuse(key, now, by_forecast)

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        self.asked["window"] += 1
        return super().most_time_to_reuse(key, now, until)


def listed(owner_sets: Iterable[frozenset[str]], blocks: int = 1) -> Groups:
    """A group of so many blocks for each set of owners."""
    groups = Groups()
    for number, owners in enumerate(owner_sets):
        group = Group(owners)
        groups.add(group)
        for i in range(blocks):
            group.add(KVCacheBlock(number * 1000 + i), i)
    return groups


def away(table: SessionTable, key: str, now: float, forecast: Forecast | None) -> None:
    table.request_arrived(key, now)
    table.request_left(key, now)
    if forecast is not None:
        table.apply(ForecastUpdate(key, now, forecast))


owner_sets = st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3).map(frozenset)
events = st.lists(
    st.tuples(
        st.floats(0, 1.5),
        st.sampled_from(["wait", "away", "drain", "end"]),
        st.sampled_from("abcdef"),
        st.sampled_from([None, *CURVES]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(owner_sets, min_size=1, max_size=8, unique=True), events)
def test_the_victim_is_the_one_that_sorting_anew_would_find(owner_sets, events) -> None:
    table, now = SessionTable(100), 0.0
    owner_sets = [*owner_sets, frozenset((everybodys_owner(now),)), frozenset("-")]
    groups = listed(owner_sets)
    ranking = Ranking(groups)
    for passed_s, what, key, forecast in events:
        now += passed_s
        if what == "drain":
            if (victim := ranking.victim(table, now)) is not None:
                victim.take(len(victim.blocks), [0] * 20_000)
                groups.remove(victim)
                ranking.unlisted(victim)
        elif what != "wait":
            away(table, key, now, forecast)
            if what == "end":
                table.apply(ForecastUpdate(key, now, None, ended=True))
            ranking.changed(key)
        anew: Any = next(ranking.in_order(table, now), None)
        assert ranking.victim(table, now) is anew


def test_a_victim_costs_a_look_at_the_top_and_not_at_every_group() -> None:
    table, sessions, steps = CountedTable(), 500, 200
    for i in range(sessions):
        away(table, f"s{i}", 0.0, Forecast((0.0, 50.0), (i * 10.0, i * 5.0)))
    ranking = Ranking(listed(frozenset((f"s{i}",)) for i in range(sessions)))
    for step in range(steps):
        ranking.victim(table, step * 0.01)
    assert table.asked["window"] <= 3 * sessions
    assert table.asked["now"] <= 5 * steps


def test_ranking_costs_the_same_for_any_number_of_blocks() -> None:
    asked = []
    for blocks in (1, 300):
        table = CountedTable()
        ranking = Ranking(listed((frozenset((f"s{i}",)) for i in range(20)), blocks))
        for step in range(50):
            ranking.victim(table, step * 0.1)
        asked.append(table.asked)
    assert asked[0] == asked[1]
