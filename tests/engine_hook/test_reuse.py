"""Whose blocks go first where parked sessions, people and forecasts meet."""

from __future__ import annotations

from typing import Any

import pytest
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.cost import Speed, relative_cost
from cachewise_engine_hook.guard import Guard
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.ranking import Ranking
from cachewise_engine_hook.reuse import SessionReuse
from cachewise_engine_hook.sessions import (
    ForecastUpdate,
    SessionTable,
    anonymous_owner,
    everybodys_owner,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_hook.test_free_queue import Engine, contents
from tests.engine_hook.test_ranking import CURVES, listed

SESSIONS = "abcde"
waits = st.floats(0, 1e6)


class World:
    """A session table, who is active in it, and what is made of both."""

    def __init__(self, **config: Any) -> None:
        self.table, self.active = SessionTable(100), set(SESSIONS)
        self.guard, self.speed = Guard(1_000), Speed()
        self.reuse = SessionReuse(
            Config(**config), self.table, self.guard, self.speed, lambda key: key in self.active
        )

    def away(self, key: str, now: float, wait_s: float, human: bool = False) -> None:
        """The session goes away, and its forecast is here at once."""
        self.table.request_arrived(key, now)
        self.table.request_left(key, now)
        curve = Forecast((0.0, 10.0), (wait_s, wait_s / 2))
        self.table.apply(ForecastUpdate(key, now, curve, waits_for_human=human))

    def last(self, now: float = 0.0) -> str:
        return max(SESSIONS[: len(self.table)], key=lambda key: self.reuse.time_to_reuse(key, now))


def test_a_person_has_a_curve_as_any_other_unless_people_go_first() -> None:
    for human_first, last in ((False, "b"), (True, "a")):
        world = World(human_first=human_first)
        world.away("a", 0.0, 5.0, human=True)
        world.away("b", 0.0, 500.0)
        assert world.last() == last
        world.active.discard("b")
        assert world.last() == "b", "what is parked goes before any active session's"


def test_among_people_the_one_who_is_away_longest_goes_first() -> None:
    world = World(human_first=True)
    world.away("a", 0.0, 5.0, human=True)
    world.away("b", 0.0, 6.0, human=True)
    assert world.last() == "b"


def test_admission_and_claims_see_people_as_the_free_queue_does_while_forecasts_are_trusted() -> (
    None
):
    world = World(human_first=True)
    world.away("a", 0.0, 5.0, human=True)
    world.away("b", 0.0, 500.0)
    assert world.reuse.wait_s("a", 1.0) > world.reuse.wait_s("b", 1.0)
    world.guard.follows_lru = True
    assert world.reuse.wait_s("a", 1.0) == world.reuse.wait_s("b", 1.0) == 1.0


def test_the_next_turn_says_anew_what_is_waited_for() -> None:
    world = World(human_first=True)
    world.away("a", 0.0, 5.0, human=True)
    world.away("b", 0.0, 500.0)
    world.away("a", 1.0, 5.0)
    assert world.last(1.0) == "b"


def test_a_dear_context_may_be_away_longer_by_the_weight_of_its_cost() -> None:
    """b costs 6 times what a does, and is away twice as long."""
    for weight, last in ((0.0, "b"), (0.25, "b"), (0.5, "a"), (1.0, "a")):
        world = World(recompute_cost_weight=weight)
        for key, tokens, wait_s in (("a", 20_000, 10.0), ("b", 80_000, 20.0)):
            world.away(key, 0.0, wait_s)
            world.table.get(key).context_tokens = tokens
        assert relative_cost(80_000) == pytest.approx(6 * relative_cost(20_000))
        assert world.last() == last


def test_what_is_computed_twice_as_fast_ranks_the_same() -> None:
    world = World(recompute_cost_weight=1.0)
    world.away("a", 0.0, 10.0)
    before = world.reuse.time_to_reuse("a", 1.0)
    world.speed.seconds_per_token /= 2
    assert world.reuse.time_to_reuse("a", 1.0) == before


owner_sets = st.sets(st.sampled_from(SESSIONS), min_size=1, max_size=3).map(frozenset)
events = st.lists(
    st.tuples(
        st.floats(0, 1.5),
        st.sampled_from(["wait", "away", "park", "enter", "end"]),
        st.sampled_from(SESSIONS),
        st.sampled_from(CURVES),
        st.booleans(),
        st.integers(0, 200_000),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=300)
@given(
    st.lists(owner_sets, min_size=1, max_size=8, unique=True),
    events,
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_with_any_settings_the_victim_is_the_one_that_sorting_anew_would_find(
    owner_sets, events, weight, human_first
) -> None:
    world, now = World(recompute_cost_weight=weight, human_first=human_first), 0.0
    owner_sets = [
        *owner_sets,
        frozenset((everybodys_owner(now),)),
        frozenset((anonymous_owner(now),)),
    ]
    ranking = Ranking(listed(owner_sets))
    for passed_s, what, key, curve, human, tokens in events:
        now += passed_s
        if what == "away":
            world.table.request_arrived(key, now)
            world.table.request_left(key, now)
            world.table.get(key).context_tokens = tokens
            world.table.apply(ForecastUpdate(key, now, curve, waits_for_human=human))
        elif what == "end":
            world.table.apply(ForecastUpdate(key, now, None, ended=True))
        elif what == "park":
            world.active.discard(key)
        elif what == "enter":
            world.active.add(key)
        if what != "wait":
            ranking.changed(key)
        assert ranking.victim(world.reuse, now) is next(ranking.in_order(world.reuse, now))


operations = st.lists(
    st.tuples(
        st.sampled_from(SESSIONS),
        st.sampled_from(["turn", "away", "away", "park", "enter"]),
        st.integers(0, 3),
        st.integers(3, 12),
        waits,
        st.booleans(),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=100)
@given(operations)
def test_with_people_first_nothing_of_a_tools_goes_while_a_persons_is_there(ops) -> None:
    world, now = World(human_first=True), 0.0
    engine = Engine(True, world.reuse)
    queue = engine.queue

    def evicted(owners: frozenset[str], blocks: int, order: str) -> None:
        known = [s for o in owners if (s := world.table.get(o)) is not None]
        if order == "forecast" and any(
            not s.waits_for_human and not s.ended and s.key in world.active for s in known
        ):
            for group in queue._groups.by_owners.values():
                owning = [world.table.get(owner) for owner in group.owners]
                assert not all(s is not None and s.waits_for_human for s in owning)

    queue.on_evicted = evicted
    for key, what, shared, length, wait_s, human in ops:
        now += 0.5
        queue.begin_step(now)
        if what == "turn" and key not in engine.chains:
            if engine.start(key, contents(key, shared, length, 0), False):
                world.table.request_arrived(key, now)
        elif what == "away" and key in engine.chains:
            engine.finish(key, key)
            world.table.request_left(key, now)
            curve = Forecast((0.0, 10.0), (wait_s, wait_s / 2))
            world.table.apply(ForecastUpdate(key, now, curve, waits_for_human=human))
        elif what == "park":
            world.active.discard(key)
        elif what == "enter":
            world.active.add(key)
        queue.ranks_changed()
