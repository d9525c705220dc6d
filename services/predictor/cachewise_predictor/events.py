"""The messages of the predictor: what happened to a session, and what is forecast for it.

Times called `..._at` are seconds on the predictor's own clock; ages and waits are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class SessionKey(NamedTuple):
    """A session's name is unique within its tenant."""

    tenant: str
    session: str


class Wait(Enum):
    """What a session waits for after a turn; each has a curve of its own."""

    __hash__ = object.__hash__  # Enum's own is not compiled, and this is part of most keys

    TOOL = "tool"
    HUMAN = "human"
    LENGTH = "length"
    ABORTED = "aborted"


class ToolCall(NamedTuple):
    """arguments: JSON text, redacted and cut at 400 characters by the engine; "" if unknown."""

    name: str
    arguments: str = ""


@dataclass(frozen=True)
class TurnStarted:
    """The session's next request arrived."""


@dataclass(frozen=True)
class TurnEnded:
    """The response is complete. dropped: tool calls that it had beside these."""

    wait: Wait
    calls: tuple[ToolCall, ...] = ()
    dropped: int = 0


@dataclass(frozen=True)
class SessionEnded:
    """The session will not come back."""


@dataclass(frozen=True)
class Event:
    """`age_s`: how long ago it happened when the batch arrived; finite and not negative."""

    key: SessionKey
    turn: str
    age_s: float
    kind: TurnStarted | TurnEnded | SessionEnded


@dataclass(frozen=True)
class OpenInterval:
    """A wait that goes on: the turn that began it, when, and what it waits for."""

    turn: str
    opened_at: float
    wait: Wait
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class Interval:
    """A wait that is over. `is_finished` false: censored, the session was not seen to return."""

    key: SessionKey
    turn: str
    wait: Wait
    calls: tuple[ToolCall, ...]
    seconds: float
    is_finished: bool


class Position(NamedTuple):
    """A place in the stream of intervals: milliseconds since the epoch, and a count within them."""

    ms: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError."""
        ms, number = text.split("-")
        return cls(int(ms), int(number))

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


START = Position(0, 0)
"""The place before the first interval."""


class Source(Enum):
    """The most specific level of the model that had data for a forecast.

    CLUSTER: what the arguments say, or the session's own waits.
    """

    __hash__ = object.__hash__  # as in Wait

    CLUSTER = "cluster"
    TOOL = "tool"
    TENANT = "tenant"
    GLOBAL = "global"
    PRIOR = "prior"


class Quantile(NamedTuple):
    """With this probability the whole wait, from the end of the turn, is at most `wait_s`."""

    probability: float
    wait_s: float


@dataclass(frozen=True, eq=False)
class Forecast:
    """Expected remaining wait at each elapsed time, given that the wait is longer than that.

    A model makes one per wait and remembers it; each is equal to itself only, for the hash of all
    these numbers takes longer than to look up what is known of it.
    log_survival: of the whole wait, at survival.GRID_S; stays here, for quality.py.
    """

    elapsed_s: tuple[float, ...]
    remaining_s: tuple[float, ...]
    quantiles: tuple[Quantile, ...]
    source: Source
    sample_count: int
    model_version: str
    log_survival: NDArray[np.float32] = field(repr=False)


class SessionForecast(NamedTuple):
    """`forecast` and `wait` are None if the session has no open interval, and if it has ended."""

    key: SessionKey
    turn: str = ""
    elapsed_s: float = 0.0
    forecast: Forecast | None = None
    wait: Wait | None = None
    has_ended: bool = False
