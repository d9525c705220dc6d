"""What changed in memory and is not in the store yet.

Only a session's last state matters, together with the intervals that it closed meanwhile; both go
into one transaction, so that no interval is counted twice after a crash. While the store is away
the journal grows up to its bounds, then it drops the session that has waited longest.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from .events import Interval, SessionKey
from .sessions import Change, SessionState

MAX_SESSIONS = 200_000
MAX_INTERVALS = 100_000


@dataclass
class Entry:
    """state None: the session is forgotten."""

    state: SessionState | None
    intervals: list[Interval] = field(default_factory=list)


class Journal:
    def __init__(
        self, max_sessions: int = MAX_SESSIONS, max_intervals: int = MAX_INTERVALS
    ) -> None:
        self._max_sessions, self._max_intervals = max_sessions, max_intervals
        self._entries: OrderedDict[SessionKey, Entry] = OrderedDict()
        self._intervals = 0
        self.has_entries = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, change: Change) -> int:
        """Adds a change; gives the number of sessions dropped for it, 0 or 1."""
        entry = self._entries.setdefault(change.key, Entry(None))
        entry.state = change.state
        if change.interval is not None:
            entry.intervals.append(change.interval)
            self._intervals += 1
        self.has_entries.set()
        if len(self._entries) > self._max_sessions or self._intervals > self._max_intervals:
            self.take(1)
            return 1
        return 0

    def take(self, most: int) -> dict[SessionKey, Entry]:
        """Removes the entries that have waited longest."""
        taken = [self._entries.popitem(last=False) for _ in range(min(most, len(self._entries)))]
        self._intervals -= sum(len(entry.intervals) for _, entry in taken)
        if not self._entries:
            self.has_entries.clear()
        return dict(taken)
