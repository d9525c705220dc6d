"""Keeps sessions in memory and in the store in step, in a task of its own.

At the start the stored sessions come into memory. Then the journal is written when there is
something in it, together with what comes within GATHER_S: many small writes cost more than one.
While the store is away everything else goes on from memory; this task tries again with growing
pauses, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable

from .errors import StoreError
from .service import Predictor
from .store import Batch, Store

GATHER_S = 0.05
_MOST_PER_BATCH = 200
_LONGEST_WRITE_S, _LONGEST_FINISH_S = 2.0, 5.0
_PURGE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """The store of --redis-url is not ours to start."""


class StoreSync:
    """revive: starts the embedded store again if it died; blocks, so it runs in a thread."""

    def __init__(
        self, store: Store, predictor: Predictor, revive: Callable[[], None] = _nothing
    ) -> None:
        self._store, self._predictor, self._revive = store, predictor, revive
        self._writer, self._number = uuid.uuid4().hex, 0
        self._unanswered: Batch | None = None
        self._has_restored = False
        self._purge_at = 0.0
        self._is_up: bool | None = None
        self._is_stopping = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether the store answered last time."""
        return self._is_up is True

    async def start(self) -> None:
        """The first round, so that a restarted predictor knows its sessions before it serves."""
        await self._try_round()

    async def run(self) -> None:
        """Until `stop`; then writes what is left.

        Not to be cancelled: on Python 3.11 the store's client can swallow a cancellation.
        """
        journal, pause_s = self._predictor.journal, _FIRST_PAUSE_S
        while not self._is_stopping.is_set():
            if await self._try_round():
                pause_s = _FIRST_PAUSE_S
                await _wait(journal.has_entries, self._purge_at - self._predictor.clock())
                await _wait(self._is_stopping, GATHER_S)
            else:
                await _wait(self._is_stopping, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        await self._finish()

    def stop(self) -> None:
        """Lets `run` come to its end."""
        self._is_stopping.set()
        self._predictor.journal.has_entries.set()

    async def _finish(self) -> None:
        try:
            await self._write(_LONGEST_FINISH_S)
        except StoreError as error:
            _log.warning("%s", error)
        if left := len(self._predictor.journal):
            _log.warning("%d changed sessions could not be stored in time", left)

    async def _try_round(self) -> bool:
        try:
            if self._is_up is False:
                await asyncio.to_thread(self._revive)
            await self._round()
        except StoreError as error:
            if self._is_up is not False:
                _log.warning("%s; serving from memory", error)
            self._show(False)
            return False
        if self._is_up is False:
            _log.info("the store answers again")
        self._show(True)
        return True

    async def _round(self) -> None:
        if not self._has_restored:
            await self._restore()
        await self._write(_LONGEST_WRITE_S)
        now = self._predictor.clock()
        if now >= self._purge_at:
            await self._store.purge_sessions(now)
            await self._store.purge_intervals(now)
            self._purge_at = now + _PURGE_S

    async def _restore(self) -> None:
        stored = await self._store.load_sessions()
        for key, state in stored:
            self._predictor.sessions.restore(key, state)
        self._predictor.expire()
        self._has_restored = True
        open_count = self._predictor.sessions.open_count
        _log.info("%d sessions restored, %d intervals are open", len(stored), open_count)

    async def _write(self, most_s: float) -> None:
        """Empties the journal, or as much of it as the time allows.

        A batch whose answer was lost is looked up before it is sent again.
        """
        if self._unanswered is not None:
            if await self._store.last_written(self._writer) < self._unanswered.number:
                await self._store.write(self._unanswered)
            self._unanswered = None
        journal, clock = self._predictor.journal, self._predictor.clock
        deadline = clock() + most_s
        while clock() < deadline and (entries := journal.take(_MOST_PER_BATCH)):
            self._number += 1
            self._unanswered = Batch(
                self._writer,
                self._number,
                {key: entry.state for key, entry in entries.items()},
                [interval for entry in entries.values() for interval in entry.intervals],
            )
            await self._store.write(self._unanswered)
            self._unanswered = None

    def _show(self, is_up: bool) -> None:
        self._is_up = is_up
        self._predictor.metrics.store_up.set(is_up)


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(most_s, 0.0))
