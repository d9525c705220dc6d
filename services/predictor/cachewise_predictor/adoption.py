"""The store's current model becomes the one that serves, without a request that waits for it.

A new model is read in a thread that lets others run every millisecond, and asked once for the
forecast of each open interval before it serves: so the first requests find their forecasts made.
Most of that time it rests, so that requests hardly wait meanwhile.
Swapping is an assignment. A broken model is refused, and the present one stays. A store that was
wiped gets the model back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Iterator

from .errors import ModelError, StoreError
from .model import Model
from .model_file import from_bytes, to_bytes
from .published import ModelInfo, Pointer
from .service import Predictor
from .store import Store

REFRESH_S = 2.0
_MOST_WARMED = 8_192
_BREATH_S = 0.001
_WORK_S, _REST_S = 0.0005, 0.001

_log = logging.getLogger(__name__)


class Adoption:
    def __init__(self, store: Store, predictor: Predictor) -> None:
        self._store, self._predictor = store, predictor
        self._pointer: Pointer | None = None
        """The last one seen."""
        self._served: Pointer | None = None
        """That of the model that serves, with how it came to be."""
        self._info = ModelInfo("unknown", 0.0)
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`. Outages are for sync.py to tell.

        Not to be cancelled: on Python 3.11 the store's client can swallow a cancellation.
        """
        while not self._is_stopping.is_set():
            with contextlib.suppress(StoreError):
                await self.refresh()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), REFRESH_S)

    def stop(self) -> None:
        """Lets `run` come to its end."""
        self._is_stopping.set()

    async def refresh(self) -> None:
        """One look at the store. Raises StoreError."""
        pointer = await self._store.pointer()
        if pointer is None:
            await self._give_back()
        elif pointer != self._pointer:
            await self._adopt(pointer)
        metrics = self._predictor.metrics
        metrics.show_trainer(await self._store.has_trainer(), await self._store.status())

    async def _adopt(self, pointer: Pointer) -> None:
        blob = await self._store.load_model(pointer.version)
        info = await self._store.model_info(pointer.version)
        self._pointer = pointer
        with _collected_later():
            try:
                model = await asyncio.to_thread(_read, blob)
            except ModelError as error:
                self._predictor.metrics.refused_models.inc()
                _log.error("stored model %s refused: %s", pointer.version, error)
                return
            await self._warm(model)
            self._predictor.model = model
        self._served, self._info = pointer, info or self._info
        self._predictor.metrics.show_stored_version(pointer.version)
        _log.info("model %s adopted, %d samples", pointer.version, model.samples)

    async def _warm(self, model: Model) -> None:
        rest_at = time.monotonic() + _WORK_S
        for key, opened, recent in self._predictor.sessions.newest_open(_MOST_WARMED):
            model.forecast(key.tenant, opened.wait, opened.calls, recent)
            if time.monotonic() >= rest_at:
                await asyncio.sleep(_REST_S)
                rest_at = time.monotonic() + _WORK_S

    async def _give_back(self) -> None:
        if self._served is None:
            return
        blob = await asyncio.to_thread(to_bytes, self._predictor.model)
        if await self._store.publish_model(self._served, blob, self._info, after=None):
            self._pointer = self._served
            _log.warning("the store had lost model %s and has it again", self._served.version)


@contextlib.contextmanager
def _collected_later() -> Iterator[None]:
    """A full collection walks every object of a model: requests would wait 100 ms for it.

    So none is made while a model comes, and afterwards the collector leaves what is there alone.
    Models have no cycles: a former one goes when nothing refers to it any more.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _read(blob: bytes) -> Model:
    """In a thread; what is computed once per model is computed there, too."""
    model = from_bytes(blob, pause=lambda: time.sleep(_BREATH_S))
    _ = model.version, model.groups_by_level, model.kinds_by_samples
    return model
