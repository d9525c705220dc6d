"""The recent intervals that models are trained on and judged by.

    bounds     MAX_INTERVALS, and MAX_AGE_S since an interval was stored
    once       an interval is known by its session and turn; what comes again changes nothing
    reserve    one live interval in RESERVED is never learned from, by any model: so two models can
               be compared on waits that neither has seen
    left out   parts of the stream that no model may learn from: a batch that spoiled a candidate,
               and what came after a model that an operator went back to
    cut        what a tool's waits were before they changed

Intervals from trace files are not live: they are learned from, and never judge. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from .events import Interval, Position, SessionKey
from .model import Group, group_of

MAX_INTERVALS = 30_000
MAX_AGE_S = 14 * 86_400.0
RESERVED = 5
MAX_CHANGES = 200


class StoredInterval(NamedTuple):
    """is_live: reported by an engine, not read from a trace file."""

    position: Position
    interval: Interval
    is_live: bool = True


class LeftOut(NamedTuple):
    """The intervals after a position up to another one. tenant None: of all tenants."""

    tenant: str | None
    after: Position
    to: Position


Changes = Mapping[Group, Position]
"""Tools (kinds of calls of a tenant) whose waits changed, and the first position after it."""


class Entry(NamedTuple):
    position: Position
    interval: Interval
    group: Group
    is_reserved: bool


class Window:
    def __init__(self, most: int = MAX_INTERVALS, max_age_s: float = MAX_AGE_S) -> None:
        self._most, self._max_age_s = most, max_age_s
        self._entries: dict[tuple[SessionKey, str], Entry] = {}
        """In the order of the stream."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, stored: StoredInterval) -> Entry | None:
        """The new entry; None if the interval was there before."""
        position, interval, is_live = stored
        name = (interval.key, interval.turn)
        if name in self._entries:
            return None
        is_reserved = is_live and _draw(interval) % RESERVED == 0
        entry = Entry(position, interval, group_of(interval), is_reserved)
        self._entries[name] = entry
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]
        return entry

    def expire(self, now: float) -> None:
        """Drops what is too old."""
        oldest_ms = (now - self._max_age_s) * 1_000
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.position.ms >= oldest_ms:
                return
            del self._entries[name]

    def leave_out(self, parts: Iterable[LeftOut]) -> None:
        parts = list(parts)
        if parts:
            self._keep(lambda entry: not any(_is_in(entry, part) for part in parts))

    def cut(self, changes: Changes) -> None:
        """Drops what changed tools were before."""
        if changes:
            self._keep(lambda entry: not is_outdated(entry, changes))

    def remembered(self, changes: Changes, now: float) -> Changes:
        """The changes that a window which is read again from the stream has to be cut by."""
        oldest_ms = (now - self._max_age_s) * 1_000
        newest = sorted(changes.items(), key=lambda item: item[1])[-MAX_CHANGES:]
        return {group: since for group, since in newest if since.ms >= oldest_ms}

    def learnable(self, changes: Changes) -> list[Interval]:
        """What a model may learn, without what changed tools were before."""
        return [
            entry.interval
            for entry in self
            if not entry.is_reserved and not is_outdated(entry, changes)
        ]

    @property
    def reserve(self) -> list[Entry]:
        return [entry for entry in self if entry.is_reserved]

    def _keep(self, is_kept: Callable[[Entry], bool]) -> None:
        self._entries = {name: entry for name, entry in self._entries.items() if is_kept(entry)}


def is_outdated(entry: Entry, changes: Changes) -> bool:
    since = changes.get(entry.group)
    return since is not None and entry.position < since


def _is_in(entry: Entry, part: LeftOut) -> bool:
    is_tenant_s = part.tenant is None or part.tenant == entry.interval.key.tenant
    return is_tenant_s and part.after < entry.position <= part.to


def _draw(interval: Interval) -> int:
    """The same number for the same turn, in every process."""
    return crc32("\n".join((*interval.key, interval.turn)).encode("utf-8", "surrogatepass"))
