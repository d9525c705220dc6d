"""One training: a candidate and the verdict on it, made in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import thread_time

from .events import Interval, Position
from .gate import Verdict, judge
from .model import Model
from .model_file import to_bytes
from .train import build
from .window import Changes, Entry


@dataclass(frozen=True)
class Outcome:
    """blob: of the candidate, empty if it was refused; took_s: of a processor core."""

    candidate: Model
    blob: bytes
    verdict: Verdict
    took_s: float


@dataclass
class Trial:
    """reason: why it was due; generation: of the serving model, None if there is none; position:
    the last in the window; changes: those that it takes for true.
    """

    reason: str
    generation: int | None
    position: Position
    changes: Changes
    _outcome: asyncio.Future[Outcome] = field(default_factory=asyncio.Future)

    def begin(
        self,
        intervals: list[Interval],
        window: Sequence[Entry],
        serving: Model,
        trained_to: Position,
    ) -> None:
        """intervals, window: to learn from and to judge by; trained_to: the last in the window of
        the serving model.

        In a daemon thread, so that the process can end while it works.
        """
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                tell = partial(
                    self._outcome.set_result, self._train(intervals, window, serving, trained_to)
                )
            except BaseException as error:
                tell = partial(self._outcome.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell)

        threading.Thread(target=work, name="training", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._outcome.done()

    def outcome(self) -> Outcome:
        """Once it is over. Raises what the training raised."""
        return self._outcome.result()

    def _train(
        self,
        intervals: list[Interval],
        window: Sequence[Entry],
        serving: Model,
        trained_to: Position,
    ) -> Outcome:
        began = thread_time()
        candidate = build(intervals)
        verdict = judge(candidate, serving, window, trained_to, self.position, self.changes)
        blob = b"" if verdict.refusal else to_bytes(candidate)
        return Outcome(candidate, blob, verdict, thread_time() - began)
