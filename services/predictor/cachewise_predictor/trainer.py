"""The trainer: several may run, and one of them trains.

Which one, a lease in the store decides (Lease in store.py): whoever has it renews it three times
in its life, and gives it back at the end; if it dies, the lease lapses and another takes it. A
trainer that was stopped for longer than that and goes on cannot do harm: a model is published only
if nobody else has published one since (learner.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from time import monotonic

from .errors import StoreError
from .learner import Learner
from .store import LEASE_S, Store
from .training import Schedule

_ROUND_S = 1.0
_RETRY_S = 3.0

_log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, store: Store, clock: Callable[[], float], schedule: Schedule) -> None:
        """clock: seconds since the epoch."""
        self._store, self._clock, self._schedule = store, clock, schedule
        self._is_stopping = asyncio.Event()
        self._is_up = True

    def stop(self) -> None:
        """Lets `run` come to its end; a training that goes on is not waited for."""
        self._is_stopping.set()

    async def run(self) -> None:
        """Until `stop`.

        Not to be cancelled: on Python 3.11 the store's client can swallow a cancellation.
        """
        while not self._is_stopping.is_set():
            with self._outages_told():
                if await self._store.acquire_lease():
                    _log.info("this trainer has the lease")
                    await self._lead()
            await _wait(self._is_stopping, _RETRY_S)

    async def _lead(self) -> None:
        """As long as the lease is kept."""
        is_over = asyncio.Event()
        renewal = asyncio.create_task(self._renew(is_over))
        learner = Learner(self._store, self._clock, self._schedule)
        try:
            await learner.start()
            while not self._is_stopping.is_set() and not renewal.done():
                has_more = False
                with self._outages_told():
                    has_more = await learner.round()
                await _wait(self._is_stopping, 0.0 if has_more else _ROUND_S)
        finally:
            is_over.set()
            await renewal
            with self._outages_told():
                await self._store.release_lease()

    async def _renew(self, is_over: asyncio.Event) -> None:
        """Until it is over, or the lease is lost: another has it, or may have."""
        renewed_at = monotonic()
        while not is_over.is_set():
            with self._outages_told():
                if not await self._store.renew_lease():
                    break
                renewed_at = monotonic()
            if monotonic() - renewed_at > LEASE_S:
                break
            await _wait(is_over, LEASE_S / 3)
        else:
            return
        _log.warning("this trainer has lost the lease")

    @contextlib.contextmanager
    def _outages_told(self) -> Iterator[None]:
        """Goes on when the store does not answer, and says so once."""
        try:
            yield
        except StoreError as error:
            if self._is_up:
                _log.warning("%s; the trainer waits", error)
            self._is_up = False
        else:
            self._is_up = True


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), most_s)
