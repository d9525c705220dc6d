"""What the engine knows of each session: whether it is here, since when it is away, its forecast.

A session is active while it has a request in the engine and idle otherwise; a forecast speaks of
one idle spell and is dropped when the session's next request arrives. The table is bounded: beyond
the limit the session idle longest is forgotten, and its blocks count as never wanted again. First
go those that have never come back: a flood of made-up ids must not push real sessions out.

Requests without a session id are not in the table. Their blocks belong to the quarter minute in
which they were freed, which ranks them by age as LRU does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain

from cachewise_engine_hook.policy import Forecast, remaining_without_forecast

_ANONYMOUS = "~"
_ANONYMOUS_SPELL_S = 15.0


_RETURNED_SHARE = 0.8
"""Of the table's places, for sessions that have come back at least once."""

_EVERYBODY = "*"
_EVERYBODYS_KEPT_S = 600.0


def everybodys_owner(now: float) -> str:
    """The owner of blocks that very many sessions use, one of them now: a system prompt.

    They are wanted at once until nobody has used them for ten minutes; then they age like others.
    """
    return f"{_EVERYBODY}{int(now // _ANONYMOUS_SPELL_S)}"


def is_everybodys(owners: frozenset[str]) -> bool:
    return any(owner.startswith(_EVERYBODY) for owner in owners)


def anonymous_owner(now: float) -> str:
    """The owner of blocks that no session claims, freed now."""
    return f"{_ANONYMOUS}{int(now // _ANONYMOUS_SPELL_S)}"


@dataclass(slots=True)
class Session:
    """One session's state; times are seconds of the engine's monotonic clock."""

    key: str
    active_requests: int = 0
    arrived_at: float = -math.inf
    idle_since: float = -math.inf
    context_tokens: int = 0
    """Tokens of its last request that had been computed when the request gave its blocks back."""
    forecast: Forecast | None = None
    waits_for_human: bool = False
    """Of an idle spell that has a forecast: whether its turn ended without a tool call."""
    ended: bool = False
    turns_beside: int = 0
    """Turns in a row that did not use all of its free blocks."""


@dataclass(frozen=True, slots=True)
class ForecastUpdate:
    """What the forecast link brings: a session's forecast, or that it has ended."""

    session: str
    opened_at: float
    """When the interval opened, in seconds of the engine's monotonic clock."""
    forecast: Forecast | None
    ended: bool = False
    received_at: float = -math.inf
    waits_for_human: bool = False
    """False too where the predictor does not say what the session waits for."""


class SessionTable:
    """All sessions that the engine remembers, the one heard of longest ago first."""

    def __init__(self, max_sessions: int) -> None:
        self.max_sessions = max_sessions
        self.with_forecast = 0
        self.forgotten: list[str] = []
        """Keys dropped since the scheduler last looked; the scheduler clears it."""
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._seen_once: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, key: str) -> bool:
        return key in self._sessions

    def get(self, key: str) -> Session | None:
        return self._sessions.get(key)

    def snapshot(self) -> list[Session]:
        """The sessions now, safe to take from another thread."""
        return list(self._sessions.values())

    def request_arrived(self, key: str, now: float) -> Session:
        """The session's next request is here: its idle spell and its forecast are over."""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(key)
            self._seen_once[key] = None
        else:
            self._seen_once.pop(key, None)
            self._sessions.move_to_end(key)
        session.active_requests += 1
        session.arrived_at = now
        session.ended = session.waits_for_human = False
        self._set_forecast(session, None)
        self._forget_oldest()
        return session

    def request_left(self, key: str, now: float) -> None:
        """A request of the session has finished or was aborted."""
        session = self._sessions.get(key)
        if session is None or session.active_requests == 0:
            return
        session.active_requests -= 1
        session.idle_since = now

    def apply(self, update: ForecastUpdate) -> str:
        """Takes a forecast; "" if it was taken, else why not: "unknown", "returned" or "stale"."""
        session = self._sessions.get(update.session)
        if session is None:
            return "unknown"
        if session.active_requests:
            return "returned"
        if update.opened_at < session.arrived_at:
            return "stale"
        self._set_forecast(session, update.forecast)
        session.waits_for_human = update.waits_for_human
        session.ended = update.ended
        return ""

    def time_to_reuse(self, key: str, now: float, by_forecast: bool = True) -> float:
        """Expected seconds until the session's next request; inf for ended and forgotten ones."""
        session = self._sessions.get(key)
        if session is None and key.startswith((_ANONYMOUS, _EVERYBODY)):
            idle_s = now - int(key[1:]) * _ANONYMOUS_SPELL_S
            kept = key.startswith(_EVERYBODY) and idle_s < _EVERYBODYS_KEPT_S
            return 0.0 if kept else remaining_without_forecast(idle_s)
        if session is None or session.ended:
            return math.inf
        if session.active_requests:
            return 0.0
        if session.forecast is None or not by_forecast:
            return remaining_without_forecast(now - session.idle_since)
        return session.forecast.remaining(now - session.idle_since)

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        """The largest that time_to_reuse will be from now until then if nothing is heard of it."""
        session = self._sessions.get(key)
        if session is None or session.forecast is None or session.active_requests or session.ended:
            return self.time_to_reuse(key, until)  # which does not fall
        idle_since = session.idle_since
        return session.forecast.most_remaining(now - idle_since, until - idle_since)

    @property
    def can_rank(self) -> bool:
        """Whether any idle session has a forecast; without one the order is stock vLLM's."""
        return self.with_forecast > 0

    def _set_forecast(self, session: Session, forecast: Forecast | None) -> None:
        self.with_forecast += (forecast is not None) - (session.forecast is not None)
        session.forecast = forecast

    def _forget_oldest(self) -> None:
        if len(self._sessions) <= self.max_sessions:
            return
        returned = len(self._sessions) - len(self._seen_once)
        first = self._seen_once if returned <= _RETURNED_SHARE * self.max_sessions else ()
        # Active sessions are few and recent: the first idle one is found after a few steps.
        for key in chain(first, self._sessions):
            if not (session := self._sessions[key]).active_requests:
                self._set_forecast(session, None)
                del self._sessions[key]
                self._seen_once.pop(key, None)
                self.forgotten.append(key)
                return
