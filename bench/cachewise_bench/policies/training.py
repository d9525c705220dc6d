"""What learned policies may learn from: the training sessions, and what is fitted to them, once.

A wait counts when the session came back: the last turn of a session ends without one. Waits at the
log's clip are censored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cachewise_predictor import events
from cachewise_predictor.events import Interval, SessionKey, Wait
from cachewise_predictor.model import Model
from cachewise_predictor.train import build
from cachewise_proto.redaction import MAX_RAW_CHARS, redact
from numpy.typing import NDArray

from cachewise_bench.policies.clusters import ClusterCurves
from cachewise_bench.workload import MAX_WAIT_S, Session, Turn

TENANT = "bench"


def calls_as_sent(turn: Turn) -> tuple[events.ToolCall, ...]:
    """A turn's calls as the engine's middleware would report them to the predictor."""
    return tuple(
        events.ToolCall(call.name, redact(call.arguments[:MAX_RAW_CHARS]))
        for call in turn.tool_calls
    )


@dataclass(frozen=True)
class Training:
    """The sessions that curves are learned from; never those that are replayed."""

    sessions: tuple[Session, ...]
    _clusters: dict[int, ClusterCurves] = field(default_factory=dict, repr=False)

    @cached_property
    def waits_by_tool(self) -> dict[str, NDArray[np.float64]]:
        """Sorted waits in seconds after a call of each tool; under "" those of all tools."""
        waits: dict[str, list[float]] = defaultdict(list)
        for _, turn in self._returns():
            for name in {call.name for call in turn.tool_calls}:
                waits[name].append(turn.wait_s)
            if turn.tool_calls:
                waits[""].append(turn.wait_s)
        return {name: np.sort(np.array(waits[name])) for name in ("", *waits)}

    @cached_property
    def model(self) -> Model:
        """The product's model, trained as `cachewise-predictor train` does."""
        return build(
            [
                Interval(
                    SessionKey(TENANT, session.name),
                    "",
                    Wait.TOOL if turn.tool_calls else Wait.HUMAN,
                    calls_as_sent(turn),
                    turn.wait_s,
                    turn.wait_s < MAX_WAIT_S,
                )
                for session, turn in self._returns()
            ]
        )

    def clusters(self, count: int) -> ClusterCurves:
        """The CacheWise paper's curves with up to so many clusters for each tool."""
        if count not in self._clusters:
            turns = (turn for _, turn in self._returns())
            self._clusters[count] = ClusterCurves.fit(turns, count)
        return self._clusters[count]

    def _returns(self) -> Iterator[tuple[Session, Turn]]:
        for session in self.sessions:
            for turn in session.turns[:-1]:
                yield session, turn
