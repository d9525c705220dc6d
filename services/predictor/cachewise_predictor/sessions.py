"""The sessions that the predictor knows, and their open intervals.

A turn's end opens the session's interval; the arrival of its next turn finishes it; the end of the
session, the time limit and the bound on sessions censor it. Events may come twice, late and in the
wrong order (several API servers report about one session), so:
- the last turns of a session are remembered: an event seen before changes nothing;
- an end older than the open interval opens nothing; a start clearly older finishes nothing;
- a start that found no open interval is kept: if the end of the turn before it arrives late, the
  interval is whole;
- if a second turn ends while an interval is open (its start was lost, or turns overlap), the wait
  counts from there, and the first interval is dropped: nobody knows how long it was.
The table is ordered by last event, so that the idle ones are forgotten first. Pure: `now` is a
parameter.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from .events import (
    Event,
    Interval,
    OpenInterval,
    SessionEnded,
    SessionKey,
    TurnEnded,
    TurnStarted,
    Wait,
)
from .evidence import Recent, remember

TTL_S = 86_400.0
"""A session without events for this long is forgotten, and its open interval censored."""

MAX_SESSIONS = 100_000

_SLACK_S = 1.0
"""Ages travel with different delays: a start may seem this much older than the end before it."""

_TURNS_REMEMBERED = 8


class SessionState(NamedTuple):
    """What is known about one session. seen: checksums of the last starts and ends of turns."""

    touched_at: float
    open: OpenInterval | None = None
    seen: tuple[int, ...] = ()
    unmatched_start: tuple[str, float] | None = None
    ended_at: float | None = None
    recent: Recent = ()
    """Waits for tools that the session has had."""


class Change(NamedTuple):
    """What an event did. state: the session's new state, None if it is forgotten."""

    key: SessionKey
    state: SessionState | None
    interval: Interval | None = None
    has_opened: bool = False
    has_ended: bool = False
    is_duplicate: bool = False


class Sessions:
    """Takes events, gives changes.

    The caller runs `expire` after each batch and every few seconds.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS, ttl_s: float = TTL_S) -> None:
        self._max_sessions, self._ttl_s = max_sessions, ttl_s
        self._states: OrderedDict[SessionKey, SessionState] = OrderedDict()
        self.open_count = 0

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: SessionKey) -> SessionState | None:
        return self._states.get(key)

    def newest_open(self, most: int) -> list[tuple[SessionKey, OpenInterval, Recent]]:
        """Open intervals, those of the last events first, with what else forecasts need."""
        found = []
        for key, state in reversed(self._states.items()):
            if state.open is not None:
                found.append((key, state.open, state.recent))
                if len(found) == most:
                    break
        return found

    def apply(self, event: Event, now: float) -> Change:
        """Takes one event that happened `age_s` before now."""
        at = now - event.age_s
        state = self._states.get(event.key) or SessionState(now)
        if isinstance(event.kind, SessionEnded):
            change = _end_session(event, state._replace(touched_at=now), at)
        elif (mark := _mark(event)) in state.seen:
            return Change(event.key, state, is_duplicate=True)
        else:
            seen = (*state.seen, mark)[-2 * _TURNS_REMEMBERED :]
            state = state._replace(touched_at=now, seen=seen)
            take = _start_turn if isinstance(event.kind, TurnStarted) else _end_turn
            change = take(event, state, at)
        if not change.is_duplicate:
            self._put(event.key, change.state)
        return change

    def restore(self, key: SessionKey, state: SessionState) -> None:
        """Adds a session from the store, oldest first; one that is known already wins."""
        if key not in self._states:
            self._put(key, state)

    def expire(self, now: float) -> Iterator[Change]:
        """Forgets sessions over the bound and those idle for too long; their open intervals are
        censored.
        """
        while self._states:
            key, state = next(iter(self._states.items()))
            if len(self._states) <= self._max_sessions and now - state.touched_at < self._ttl_s:
                return
            self._put(key, None)
            yield Change(key, None, _close(key, state.open, now, is_finished=False))

    def _put(self, key: SessionKey, state: SessionState | None) -> None:
        old = self._states.pop(key, None)
        self.open_count -= old is not None and old.open is not None
        if state is not None:
            self._states[key] = state
            self.open_count += state.open is not None


def _start_turn(event: Event, state: SessionState, at: float) -> Change:
    opened = state.open
    if state.ended_at is not None and at > state.ended_at:
        state = state._replace(ended_at=None)
    if opened is None:
        return Change(event.key, state._replace(unmatched_start=(event.turn, at)))
    if opened.turn == event.turn or at < opened.opened_at - _SLACK_S:
        return Change(event.key, state)
    finished = _close(event.key, opened, at, is_finished=True)
    return Change(event.key, _remember(state, finished)._replace(open=None), finished)


def _end_turn(event: Event, state: SessionState, at: float) -> Change:
    assert isinstance(event.kind, TurnEnded)
    opened = OpenInterval(event.turn, at, event.kind.wait, event.kind.calls)
    start = state.unmatched_start
    if start is not None and start[0] != event.turn and at <= start[1]:
        finished = _close(event.key, opened, start[1], is_finished=True)
        return Change(
            event.key, _remember(state, finished)._replace(unmatched_start=None), finished
        )
    if state.ended_at is not None and at <= state.ended_at:
        return Change(event.key, state)
    if state.open is not None and at < state.open.opened_at:
        return Change(event.key, state)
    state = state._replace(open=opened, unmatched_start=None, ended_at=None)
    return Change(event.key, state, has_opened=True)


def _end_session(event: Event, state: SessionState, at: float) -> Change:
    if state.ended_at is not None:
        return Change(event.key, state, is_duplicate=True)
    if state.open is not None and at < state.open.opened_at - _SLACK_S:
        return Change(event.key, state)
    censored = _close(event.key, state.open, at, is_finished=False)
    return Change(event.key, state._replace(open=None, ended_at=at), censored, has_ended=True)


def _remember(state: SessionState, finished: Interval | None) -> SessionState:
    if finished is None or finished.wait is not Wait.TOOL or not finished.calls:
        return state
    return state._replace(recent=remember(state.recent, finished.calls, finished.seconds))


def _close(
    key: SessionKey, opened: OpenInterval | None, at: float, is_finished: bool
) -> Interval | None:
    if opened is None:
        return None
    seconds = max(at - opened.opened_at, 0.0)
    return Interval(key, opened.turn, opened.wait, opened.calls, seconds, is_finished)


def _mark(event: Event) -> int:
    """A start or an end of a turn, in four bytes."""
    return zlib.crc32(f"{type(event.kind).__name__} {event.turn}".encode())
