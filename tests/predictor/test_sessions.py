"""Open intervals under ordinary, doubled, late and lost events."""

from __future__ import annotations

from cachewise_predictor.events import Event, Interval, SessionKey
from cachewise_predictor.sessions import Change, Sessions
from hypothesis import given
from hypothesis import strategies as st

from .conftest import KEY, ended, session_ended, started

NOW = 5_000.0


def apply_all(sessions: Sessions, events: list[Event]) -> list[Interval]:
    changes = [sessions.apply(event, NOW) for event in events]
    return [change.interval for change in changes if change.interval is not None]


def chain(gaps: list[float], thinking_s: float = 2.0) -> list[Event]:
    """Turns t0, t1, ... of one session with these waits between them, the last event now."""
    age_s = sum(gaps) + thinking_s * (len(gaps) + 1)
    events = []
    for number, gap in enumerate([*gaps, 0.0]):
        events.append(started(f"t{number}", age_s))
        age_s -= thinking_s
        events.append(ended(f"t{number}", max(age_s, 0.0)))
        age_s -= gap
    return events


gaps = st.lists(st.floats(2.0, 300.0), min_size=1, max_size=7)


def waits(intervals: list[Interval]) -> list[tuple[str, float, bool]]:
    return [(i.turn, round(i.seconds, 6), i.is_finished) for i in intervals]


def expected(gaps: list[float]) -> list[tuple[str, float, bool]]:
    return [(f"t{number}", round(gap, 6), True) for number, gap in enumerate(gaps)]


@given(gaps)
def test_each_wait_between_turns_is_one_finished_interval(gaps: list[float]) -> None:
    sessions = Sessions()
    assert waits(apply_all(sessions, chain(gaps))) == expected(gaps)
    assert sessions.open_count == 1


@given(gaps, st.data())
def test_events_that_come_again_change_nothing(gaps: list[float], data: st.DataObject) -> None:
    events = chain(gaps)
    again = data.draw(st.lists(st.integers(0, len(events) - 1), max_size=20))
    doubled = list(events)
    for index in sorted(again, reverse=True):
        doubled.insert(data.draw(st.integers(index + 1, len(doubled))), events[index])
    assert waits(apply_all(Sessions(), doubled)) == expected(gaps)


@given(gaps, st.integers(0, 6))
def test_an_end_that_arrives_after_the_next_start_still_gives_the_whole_wait(
    gaps: list[float], which: int
) -> None:
    events = chain(gaps)
    index = 2 * (which % len(gaps)) + 1
    events[index], events[index + 1] = events[index + 1], events[index]
    assert waits(apply_all(Sessions(), events)) == expected(gaps)


@given(gaps, st.data())
def test_no_turn_has_two_intervals_in_whatever_order_events_come(
    gaps: list[float], data: st.DataObject
) -> None:
    events = data.draw(st.permutations([*chain(gaps), *chain(gaps), session_ended()]))
    sessions = Sessions()
    intervals = apply_all(sessions, list(events))
    turns = [interval.turn for interval in intervals]
    assert len(turns) == len(set(turns))
    assert all(interval.seconds >= 0 for interval in intervals)
    state = sessions.get(KEY)
    assert sessions.open_count == (state is not None and state.open is not None)


def test_a_start_that_seems_a_little_older_than_the_end_before_it_still_finishes_the_wait() -> None:
    (finished,) = apply_all(Sessions(), [ended("t0", 0.0), started("t1", 0.3)])
    assert (finished.seconds, finished.is_finished) == (0.0, True)


def test_a_start_from_long_before_the_wait_does_not_finish_it() -> None:
    sessions = Sessions()
    assert apply_all(sessions, [ended("t5", 1.0), started("t2", 60.0)]) == []
    assert sessions.open_count == 1


def test_a_second_end_without_a_start_restarts_the_wait_and_the_first_is_not_counted() -> None:
    events = [ended("t0", 50.0), ended("t1", 20.0), started("t2", 10.0)]
    assert waits(apply_all(Sessions(), events)) == [("t1", 10.0, True)]


def test_the_end_of_a_session_censors_its_wait_and_late_events_open_none() -> None:
    sessions = Sessions()
    events = [ended("t0", 30.0), session_ended(10.0), session_ended(10.0), ended("t9", 12.0)]
    assert waits(apply_all(sessions, events)) == [("t0", 20.0, False)]
    assert sessions.open_count == 0
    apply_all(sessions, [started("t10", 5.0), ended("t10", 1.0)])
    assert sessions.open_count == 1, "a session that comes back is alive"


def test_a_wait_that_never_ends_is_censored_at_the_time_limit() -> None:
    sessions = Sessions(ttl_s=100.0)
    sessions.apply(ended("t0"), NOW)
    assert list(sessions.expire(NOW + 99)) == []
    (change,) = sessions.expire(NOW + 100)
    assert change.interval is not None
    assert (change.interval.seconds, change.interval.is_finished) == (100.0, False)
    assert (change.state, len(sessions), sessions.open_count) == (None, 0, 0)


def test_a_flood_of_sessions_forgets_the_ones_idle_longest() -> None:
    sessions = Sessions(max_sessions=100)
    forgotten: list[Change] = []
    for number in range(1_000):
        sessions.apply(ended("t", key=SessionKey("acme", f"s{number}")), NOW)
        forgotten += sessions.expire(NOW)
    assert len(sessions) == sessions.open_count == 100
    assert [change.key.session for change in forgotten] == [f"s{n}" for n in range(900)]


def test_a_touched_session_is_not_the_one_to_be_forgotten() -> None:
    sessions = Sessions(max_sessions=2)
    keys = [SessionKey("acme", name) for name in "abc"]
    for key in (keys[0], keys[1]):
        sessions.apply(ended("t0", key=key), NOW)
    sessions.apply(started("t1", key=keys[0]), NOW)
    sessions.apply(ended("t0", key=keys[2]), NOW)
    assert [change.key for change in sessions.expire(NOW)] == [keys[1]]


def test_tenants_with_the_same_session_name_do_not_meet() -> None:
    sessions = Sessions()
    sessions.apply(ended("t0", key=SessionKey("a", "s")), NOW)
    assert sessions.apply(started("t1", key=SessionKey("b", "s")), NOW).interval is None
    assert sessions.open_count == 1


def test_a_restored_session_does_not_replace_a_known_one() -> None:
    sessions = Sessions()
    change = sessions.apply(ended("t0"), NOW)
    assert change.state is not None
    fresh = Sessions()
    fresh.apply(ended("t5"), NOW)
    fresh.restore(KEY, change.state)
    state = fresh.get(KEY)
    assert state is not None and state.open is not None and state.open.turn == "t5"
