"""fixed-ttl: each session's blocks are held for a fixed time after its turn; FCFS.

The simplest use of retention hints (vLLM PR 38514, Anthropic's cache TTL): pin for TTL_S, then
plain LRU. Open: the time (60 s here: 96 % of published tool calls end within it), and what happens
when pins leave no room (see Pins).
"""

from __future__ import annotations

from typing import Any

from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.pins import Pins

TTL_S = 60.0


class FixedTtl(Policy):
    name = "fixed-ttl"
    source = "retention for a fixed time, then LRU; FCFS"

    def __init__(self) -> None:
        super().__init__()
        self._last_request: dict[str, Any] = {}

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self.pins = Pins(engine.scheduler)

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        super().turn_arrived(session, request, now)
        self._last_request[session] = request

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        if (ttl_s := self.ttl_s(session, away)) > 0:
            self.pins.pin(self._last_request[session], away.since + ttl_s)

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        self.pins.begin_step(now, returned=self._last_request.keys() - self.away.keys())

    def ttl_s(self, session: str, away: Away) -> float:
        """For how long the session's blocks are held, in seconds."""
        return TTL_S
