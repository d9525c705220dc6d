"""Which replica watches which session, and what it has not been told yet.

A replica that reads slowly costs one entry per session that it announced, never more: an entry
only says that there is news, and the forecast is made when the message is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .errors import TooManySessions
from .events import SessionKey

MAX_SESSIONS_PER_REPLICA = 200_000


class Watcher:
    """One replica's stream."""

    def __init__(self) -> None:
        self.sessions: set[SessionKey] = set()
        self._news: dict[SessionKey, bool] = {}
        self._is_closed = False
        self._wake = asyncio.Event()

    def tell(self, key: SessionKey, has_ended: bool = False) -> None:
        """There is news of a session; the end of a session stays news until it is taken."""
        self._news[key] = has_ended or self._news.get(key, False)
        self._wake.set()

    def forget(self, key: SessionKey) -> None:
        self._news.pop(key, None)

    def close(self) -> None:
        """Ends the stream once the news that are there have been taken."""
        self._is_closed = True
        self._wake.set()

    async def take(self, most: int) -> list[tuple[SessionKey, bool]]:
        """Waits for news, and takes them: sessions, and whether they have ended. Empty: closed."""
        while not self._news and not self._is_closed:
            self._wake.clear()
            await self._wake.wait()
        keys = list(self._news)[:most] if len(self._news) > most else list(self._news)
        return [(key, self._news.pop(key)) for key in keys]


class Watchers:
    """All streams of this predictor."""

    def __init__(self) -> None:
        self._all: set[Watcher] = set()
        self._of_session: dict[SessionKey, set[Watcher]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._all)

    def add(self) -> Watcher:
        watcher = Watcher()
        self._all.add(watcher)
        if self._is_closed:
            watcher.close()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        self.withdraw(watcher, list(watcher.sessions))
        self._all.discard(watcher)

    def announce(self, watcher: Watcher, keys: Iterable[SessionKey]) -> None:
        """The replica holds these sessions now."""
        for key in keys:
            if len(watcher.sessions) >= MAX_SESSIONS_PER_REPLICA:
                raise TooManySessions(
                    f"a replica may watch {MAX_SESSIONS_PER_REPLICA} sessions: remove some first"
                )
            watcher.sessions.add(key)
            self._of_session.setdefault(key, set()).add(watcher)

    def withdraw(self, watcher: Watcher, keys: Iterable[SessionKey]) -> None:
        """The replica does not hold these sessions any more."""
        for key in keys:
            watcher.sessions.discard(key)
            watcher.forget(key)
            if watchers := self._of_session.get(key):
                watchers.discard(watcher)
                if not watchers:
                    del self._of_session[key]

    def tell(self, key: SessionKey, has_ended: bool = False) -> None:
        """There is news of a session, for every replica that holds it."""
        for watcher in self._of_session.get(key, ()):
            watcher.tell(key, has_ended)

    def close(self) -> None:
        """Ends all streams, also those to come."""
        self._is_closed = True
        for watcher in self._all:
            watcher.close()
