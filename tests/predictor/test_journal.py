"""The journal keeps the last state of a session and all its intervals, within bounds."""

from cachewise_predictor.events import SessionKey
from cachewise_predictor.journal import Journal
from cachewise_predictor.sessions import Change, SessionState

from .conftest import interval


def change(name: str, at: float = 0.0, with_interval: bool = False) -> Change:
    key = SessionKey("acme", name)
    return Change(key, SessionState(at), interval(1.0, "Bash") if with_interval else None)


def test_a_session_is_written_once_with_its_last_state_and_all_its_intervals() -> None:
    journal = Journal()
    for number in range(3):
        journal.record(change("a", float(number), with_interval=True))
    journal.record(change("b"))
    taken = journal.take(10)
    assert list(taken) == [SessionKey("acme", "a"), SessionKey("acme", "b")]
    entry = taken[SessionKey("acme", "a")]
    assert entry.state == SessionState(2.0)
    assert len(entry.intervals) == 3
    assert len(journal) == 0
    assert not journal.has_entries.is_set()


def test_entries_over_the_bounds_drop_the_one_that_has_waited_longest() -> None:
    journal = Journal(max_sessions=2)
    assert [journal.record(change(name)) for name in "abc"] == [0, 0, 1]
    assert [key.session for key in journal.take(10)] == ["b", "c"]


def test_intervals_over_the_bound_drop_their_session() -> None:
    journal = Journal(max_intervals=2)
    dropped = [journal.record(change(name, with_interval=True)) for name in "aab"]
    assert dropped == [0, 0, 1]
    assert [key.session for key in journal.take(10)] == ["b"]
    assert journal.record(change("c", with_interval=True)) == 0
