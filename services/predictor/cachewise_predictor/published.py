"""What is known about a published model beside the model itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .events import START, Position
from .window import Changes


class Pointer(NamedTuple):
    """The current model.

    generation: one more with every change of the pointer; position: the last interval of the
    stream that there was when the model was trained.
    """

    version: str
    generation: int
    position: Position = START


@dataclass(frozen=True)
class ModelInfo:
    """How a model came to be.

    reason: traces, first, volume, period or drift; trained_at: seconds since the epoch; changes:
    the tools whose waits from before were left out; scores: of the gate, on the same intervals.
    """

    reason: str
    trained_at: float
    position: Position = START
    changes: Changes = field(default_factory=dict)
    score: float | None = None
    serving_score: float | None = None
