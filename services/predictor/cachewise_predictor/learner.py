"""The interval stream becomes the model.

The stream is the only road into the model, so that several predictors on one store learn the same.
A model in the store is current up to a position of the stream; the rest is read and learned.

    read     every interval after the last one read, every REFRESH_S
    learn    once the new ones are 1 % of the model, or have waited LONGEST_DELAY_S: a small model
             follows at once, a large one does not change its version for every call
    store    the model and its position, every CHECKPOINT_S
    adopt    a newly trained model (of a later generation), at once; a broken one is refused, and
             replaced by the present one at the next checkpoint
"""

from __future__ import annotations

import logging

from .errors import ModelError
from .events import Interval
from .model_file import from_bytes, to_bytes
from .service import Predictor
from .store import START, Pointer, Store

REFRESH_S = 2.0
LONGEST_DELAY_S = 60.0
CHECKPOINT_S = 60.0

_MOST_UNLEARNED = 10_000

_log = logging.getLogger(__name__)


class Learner:
    """All methods raise StoreError, and can be called again after it. now: seconds, any origin."""

    def __init__(self, store: Store, predictor: Predictor) -> None:
        self._store, self._predictor = store, predictor
        self._generation, self._position, self._read_to = -1, START, START
        self._unlearned: list[Interval] = []
        self._learned_at = self._stored_at = float("-inf")
        self._stored_position = START

    async def refresh(self, now: float) -> None:
        """One round: adopt, read, learn, store."""
        pointer = await self._store.pointer()
        if pointer is not None and pointer.generation > self._generation:
            await self._adopt(pointer)
        await self._read(now)
        if self._is_due(now):
            self._learn(now)
        is_checkpoint_due = (
            self._position != self._stored_position and now - self._stored_at >= CHECKPOINT_S
        )
        if is_checkpoint_due or (pointer is None and self._predictor.model.samples):
            await self._save(now)

    async def finish(self, now: float) -> None:
        """Learns and stores what is left."""
        await self._read(now)
        self._learn(now)
        if self._position != self._stored_position:
            await self._save(now)

    async def _adopt(self, pointer: Pointer) -> None:
        blob = await self._store.load_model(pointer.version)
        self._generation = pointer.generation
        try:
            self._predictor.model = from_bytes(blob)
        except ModelError as error:
            self._predictor.metrics.refused_models.inc()
            _log.error("stored model %s refused: %s", pointer.version, error)
            return
        self._position = self._read_to = self._stored_position = pointer.position
        self._unlearned.clear()
        self._predictor.metrics.show_stored_version(pointer.version)
        _log.info("model %s adopted, %d samples", pointer.version, self._predictor.model.samples)

    async def _read(self, now: float) -> None:
        while True:
            position, intervals = await self._store.read_intervals(self._read_to)
            if position == self._read_to:
                return
            self._read_to = position
            self._unlearned += intervals
            if len(self._unlearned) >= _MOST_UNLEARNED:
                self._learn(now)

    def _is_due(self, now: float) -> bool:
        new, known = len(self._unlearned), self._predictor.model.samples
        return new > known / 100 or (new > 0 and now - self._learned_at >= LONGEST_DELAY_S)

    def _learn(self, now: float) -> None:
        if self._unlearned:
            self._predictor.model = self._predictor.model.learn(self._unlearned)
            self._unlearned.clear()
            self._learned_at = now
        self._position = self._read_to

    async def _save(self, now: float) -> None:
        model = self._predictor.model
        pointer = Pointer(model.version, max(self._generation, 0), self._position)
        self._stored_at = now
        if await self._store.publish_model(pointer, to_bytes(model)):
            self._generation, self._stored_position = pointer.generation, pointer.position
            self._predictor.metrics.show_stored_version(pointer.version)
