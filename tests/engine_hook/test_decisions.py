from __future__ import annotations

from cachewise_engine_hook.admission import Candidate
from cachewise_engine_hook.block_groups import Groups
from cachewise_engine_hook.decisions import DecisionTrace
from cachewise_engine_hook.room import Room
from cachewise_engine_hook.standing import LIKE_ALL
from hypothesis import given
from hypothesis import strategies as st


def story(trace: DecisionTrace, session: str) -> list[str]:
    return [d.what for d in trace.decisions if d.session == session]


def decide(
    trace: DecisionTrace, now: float, active_before: str, waiting: str, active_after: str
) -> None:
    """One decision of admission: letters are sessions; each lacks ten blocks and came at 0."""
    candidates = [Candidate(0, LIKE_ALL, 10, ord(s), s, 0.0) for s in waiting]
    inside = trace.waiting_inside(candidates, active_before.__contains__)
    trace.admission(now, candidates, inside, active_after.__contains__, Room(7, Groups()))


def test_a_session_is_parked_once_and_enters_once() -> None:
    trace = DecisionTrace(1.0)
    for now in (0.0, 1.0, 2.0):
        decide(trace, now, "b", "a", "b")
    decide(trace, 3.0, "b", "a", "ab")
    decide(trace, 4.0, "ab", "a", "ab")
    assert story(trace, "a") == ["parked", "entered"]
    parked, entered = trace.decisions
    assert (parked.at, parked.details) == (0.0, {"missing_blocks": 10, "room_blocks": 7})
    assert (entered.at, entered.details) == (3.0, {"waited_s": 3.0, "room_blocks": 7})


def test_a_session_that_is_active_already_does_not_enter() -> None:
    trace = DecisionTrace(1.0)
    decide(trace, 0.0, "a", "a", "a")
    assert not trace.decisions


def test_a_session_that_finds_room_at_once_enters_after_no_time() -> None:
    trace = DecisionTrace(1.0)
    decide(trace, 0.0, "", "a", "a")
    assert story(trace, "a") == ["entered"] and trace.decisions[0].details["waited_s"] == 0.0


def test_a_parked_session_whose_request_was_aborted_is_parked_anew_when_it_comes_again() -> None:
    trace = DecisionTrace(1.0)
    decide(trace, 0.0, "b", "a", "b")
    decide(trace, 1.0, "b", "c", "bc")
    decide(trace, 2.0, "b", "a", "b")
    assert story(trace, "a") == ["parked", "parked"]


@given(st.lists(st.text(), unique=True, max_size=50), st.floats(0, 1))
def test_what_is_traced_of_a_session_is_its_whole_story_or_nothing(sessions, share) -> None:
    trace, again = DecisionTrace(share), DecisionTrace(share)
    wider = DecisionTrace(min(share + 0.1, 1.0))
    for session in sessions:
        assert trace.wants(session) is again.wants(session)
        assert wider.wants(session) or not trace.wants(session)
        assert not DecisionTrace(0.0).wants(session) and DecisionTrace(1.0).wants(session)


def test_the_share_of_sessions_is_about_what_was_set() -> None:
    trace = DecisionTrace(0.1)
    assert 800 < sum(trace.wants(f"{i:032x}") for i in range(10_000)) < 1_200


def test_the_trace_is_bounded_and_keeps_the_newest() -> None:
    trace = DecisionTrace(1.0, size=3)
    for i in range(10):
        trace.note(float(i), "a", "left")
    assert [d.at for d in trace.decisions] == [7.0, 8.0, 9.0]
