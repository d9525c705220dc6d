from __future__ import annotations

from itertools import count
from typing import Any

from cachewise_engine_hook.admission import PATIENCE_S, SWAP_SHARE, ActiveSet, Candidate
from cachewise_engine_hook.standing import LIKE_ALL
from hypothesis import given
from hypothesis import strategies as st

from tests.engine_hook.test_room import room_of

POOL = 100
_ARRIVALS = count()
LONG_ENOUGH_S = PATIENCE_S[0]
"""Patience where computing costs nothing."""


def waits(session: str, missing: int, waited_s: float, must_run: bool = False, now: float = 0.0):
    return Candidate(0, LIKE_ALL, missing, next(_ARRIVALS), session, now - waited_s, must_run)


class Pool:
    """Blocks held by each session; room is what nobody active holds."""

    def __init__(self, held: dict[str, int], waits: dict[str, float] | None = None) -> None:
        self.held, self.waits = held, waits or {}
        self.active = ActiveSet(
            SWAP_SHARE["throughput"], POOL, lambda s, now: self.waits.get(s, 0.0), lambda s: 1.0
        )

    def step(
        self, *waiting: Candidate, running: set[str] | None = None, now: float = 0.0
    ) -> set[str]:
        held = [(frozenset(s), blocks) for s, blocks in self.held.items() if blocks]
        self.active.update(now, waiting, running or set(), room_of(POOL, held))
        return {s for s in "abcdefgh" if s in self.active}


def test_without_pressure_everybody_is_active() -> None:
    pool = Pool({})
    assert pool.step(waits("a", 40, 0), waits("b", 40, 0)) == {"a", "b"}
    assert pool.active.parked == 0 and not pool.active.is_pressed


def test_whoever_does_not_fit_is_parked_and_the_shortest_entry_goes_first() -> None:
    pool = Pool({})
    assert pool.step(waits("a", 70, 0), waits("b", 30, 0), waits("c", 60, 0)) == {
        "b",
        "c",
    }
    assert pool.active.parked == 1 and pool.active.is_pressed


def test_whoever_has_waited_long_enough_enters_before_a_short_entry_the_oldest_first() -> None:
    pool = Pool({})
    late, later = waits("a", 60, LONG_ENOUGH_S + 1), waits("b", 40, LONG_ENOUGH_S)
    assert pool.step(waits("c", 10, 0), later, late) == {"a"}


def test_a_session_that_is_away_for_long_is_displaced_and_one_that_returns_soon_is_not() -> None:
    pool = Pool({}, {"a": 35.0, "b": 45.0})
    pool.step(waits("a", 60, 0), waits("b", 30, 0))
    pool.held = {"a": 60, "b": 30}
    assert pool.step(waits("c", 30, 0), running={"e"}) == {"a", "c", "e"}
    assert pool.active.displaced == 1
    pool.held["c"] = 30
    assert pool.step(waits("d", 90, 0), running={"e"}) == {"a", "c", "e"}


def test_an_engine_with_nothing_to_run_displaces_sooner() -> None:
    pool = Pool({"a": 90}, {"a": 4.0})
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, 0), running={"h"}) == {"a", "h"}
    pool = Pool({"a": 90}, {"a": 4.0})
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, 0)) == {"b"}


def test_an_engine_stands_idle_for_no_longer_than_what_it_would_displace_costs() -> None:
    """A session that has ended unannounced, or returns late, may not hold up those who wait."""
    pool = Pool({"a": 90}, {"a": 1.9})  # said to return too soon to be displaced, again and again
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, 5.0, now=10.0), now=10.0) == {"a"}
    assert pool.step(waits("b", 50, 5.9, now=10.9), now=10.9) == {"a"}
    assert pool.step(waits("b", 50, 5.9, now=10.9), now=10.9, running={"h"}) == {"a", "h"}
    assert pool.step(waits("b", 50, 6.0, now=11.0), now=11.0) == {"a"}, "it is idle from here"
    assert pool.step(waits("b", 50, 7.0, now=12.0), now=12.0) == {"b"}


def test_only_patience_displaces_a_session_with_a_claim() -> None:
    pool = Pool({"a": 90}, {"a": -1.0})
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, 0.0, now=10.0), now=10.0) == {"a"}
    assert pool.step(waits("b", 50, LONG_ENOUGH_S - 1, now=20.0), now=20.0) == {"a"}
    assert pool.step(waits("b", 50, LONG_ENOUGH_S, now=21.0), now=21.0) == {"b"}


def test_only_what_somebody_waited_for_counts_as_idle() -> None:
    pool = Pool({"a": 90}, {"a": 1.9})
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, 0.0, now=10.0), now=10.0) == {"a"}
    assert pool.step(waits("c", 50, 0.0, now=99.0), now=99.0) == {"a"}, "b is gone, c has just come"
    assert pool.step(waits("c", 50, 1.0, now=100.0), now=100.0) == {"c"}


def test_a_session_that_needs_more_than_the_pool_enters_once_it_can_be_alone() -> None:
    pool = Pool({"a": 20}, {"a": 4.0})
    pool.step(waits("a", 20, 0))
    assert pool.step(waits("b", POOL + 5, 0), running={"a"}) == {"a"}
    assert pool.step(waits("b", POOL + 5, 0)) == {"b"}


def test_sessions_that_outgrow_the_pool_are_parked_the_longest_away_first() -> None:
    pool = Pool({}, {"b": 5.0, "c": 50.0})
    pool.step(waits("a", 30, 0), waits("b", 30, 0), waits("c", 30, 0))
    pool.held = {"a": 30, "b": 30, "c": 30}
    assert pool.step(waits("a", 20, 0)) == {"a", "b"}


candidates = st.lists(
    st.builds(
        waits,
        st.sampled_from("abcdefgh"),
        st.integers(0, 90),
        st.floats(0, 100),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda c: c.session,
)


@given(
    st.lists(st.tuples(candidates, st.sets(st.sampled_from("abcdefgh"), max_size=3)), max_size=8),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 40)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e6)),
)
def test_running_and_preempted_sessions_are_never_parked_and_nobody_is_alone_outside(
    steps, held, waits
) -> None:
    pool = Pool(held, waits)
    for waiting, running in steps:
        active = pool.step(*waiting, running=running)
        assert running <= active
        assert {c.session for c in waiting if c.must_run} <= active
        assert active or not waiting
        assert 0 <= pool.active.parked == len({c.session for c in waiting} - active)


def test_patience_grows_with_what_the_parked_would_cost() -> None:
    def enters(waited_s: float, others: int) -> bool:
        """b, before a session that is away for half a second, with others that wait for room."""
        active = Pool({}, {"a": 0.5}).active
        held, waiting = [(frozenset("a"), 90)], [waits("b", 50, waited_s)]
        waiting += [waits(f"c{i}", 50, 0) for i in range(others)]
        active.update(0.0, [waits("a", 90, 0)], set(), room_of(POOL, []))
        active.update(0.0, waiting, {"h"}, room_of(POOL, held), seconds_per_block=0.1)
        return "b" in active

    one_swap_s = 50 * 0.1 / SWAP_SHARE["throughput"]
    assert enters(1.1 * one_swap_s, others=0)
    assert not enters(1.1 * one_swap_s, others=1)
    assert enters(2.1 * one_swap_s, others=1)
    assert not enters(3.9 * one_swap_s, others=3)


def test_two_requests_of_one_session_are_one_candidate() -> None:
    first, second = waits("a", 60, 1.0), waits("a", 50, 2.0, must_run=True)
    assert first.joined(second) == first._replace(since=second.since, must_run=True)


def test_whoever_has_waited_long_enough_displaces_even_a_session_that_returns_soon() -> None:
    pool = Pool({"a": 90}, {"a": 0.5})
    pool.step(waits("a", 90, 0))
    assert pool.step(waits("b", 50, LONG_ENOUGH_S - 1), running={"h"}) == {"a", "h"}
    assert pool.step(waits("b", 50, LONG_ENOUGH_S), running={"h"}) == {"b", "h"}


def test_for_whom_patience_has_ended_room_adds_up_over_several_steps() -> None:
    pool = Pool({"a": 50, "b": 45})
    pool.step(waits("a", 45, 0), waits("b", 45, 0))
    big = waits("c", 90, LONG_ENOUGH_S)
    assert pool.step(big, waits("a", 1, 0)) == {"a"}, "b is away and makes room for c"
    assert pool.step(big, waits("b", 1, 0)) == {"c"}, "and now a is away; b waits in turn"


def test_sessions_that_are_away_and_hold_nothing_are_not_active() -> None:
    pool = Pool({})
    pool.step(waits("a", 10, 0))
    assert pool.step(waits("b", 10, 0)) == {"b"}


class SortedActiveSet(ActiveSet):
    """Entry by sorting all that are parked; remaining waits are asked for whether needed or not."""

    def _park(self, entering: list[Candidate], running: set[str]) -> int:
        self._away()
        return super()._park(entering, running)

    def _enter(self, parked: list[Candidate], needed: int, idle_s: float | None) -> None:
        def order_of_entry(candidate: Candidate) -> Any:
            if self._now - candidate.since >= self._patience_s:
                return (candidate.priority, False, candidate.since, candidate.order)
            return (candidate.priority, True, *candidate)

        for candidate in sorted(parked, key=order_of_entry):
            super()._enter([candidate], needed, idle_s)
            if candidate.session not in self._active:
                return
            needed += candidate.missing_blocks


@given(
    st.lists(st.tuples(candidates, st.sets(st.sampled_from("abcdefgh"), max_size=3)), max_size=8),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 40)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e6)),
)
def test_who_enters_is_who_would_enter_if_all_were_sorted(steps, held, waits) -> None:
    heap, by_sorting = Pool(held, waits), Pool(held, waits)
    by_sorting.active.__class__ = SortedActiveSet
    for i, (waiting, running) in enumerate(steps):
        now = 20.0 * i
        parked = [pool.step(*waiting, running=running, now=now) for pool in (heap, by_sorting)]
        assert parked[0] == parked[1]
        assert heap.active.displaced == by_sorting.active.displaced


@given(st.lists(st.tuples(st.booleans(), candidates), max_size=8))
def test_whoever_becomes_active_or_parked_is_told_also_where_it_was_forgotten_between(
    steps: list[tuple[bool, list[Candidate]]],
) -> None:
    """The waiting queue asks again of these only: what it knows must be right for all others."""
    pool, known = Pool({}), dict.fromkeys("abcdefgh", False)
    for forgets, waiting in steps:
        if forgets:
            for session in "abcd":
                pool.active.forget(session)
                known[session] = session in pool.active  # its next request comes right then
        active = pool.step(*waiting)
        for session in pool.active.take_changed():
            known[session] = session in active
        assert {s for s, is_known in known.items() if is_known} == active
