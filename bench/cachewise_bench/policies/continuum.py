"""continuum: holds a session's blocks for as long as that is expected to pay.

Continuum (2511.02230; CacheTTL in its later version). After a turn that called a tool, the blocks
are pinned for
    ttl = argmax over t of  P(T <= t) * (queue delay * eta + reload) - t
where T is the tool's time, from its past times; queue delay is what a request that was not pinned
has waited lately; reload is the time to compute the prefix again. Waiting requests go: preempted
first, then those whose pin holds, then first come first served by session, not by request. On a
deadlock the latest pin goes.

Open: eta, the share of the queue delay that a pin saves (1 here), how recent "lately" is (a moving
average, 0.1 for the newest), pins after turns without a tool call (none here), parallel calls (the
tool with the longest mean), and unknown tools (all tools together).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cachewise_bench.policies.base import Away
from cachewise_bench.policies.fixed_ttl import FixedTtl
from cachewise_bench.policies.queues import OrderedQueue
from cachewise_bench.policies.training import Training

ETA = 1.0
_NEWEST_WEIGHT = 0.1


class Continuum(FixedTtl):
    name = "continuum"
    source = "Continuum 2511.02230: TTL by tool times, program-level FCFS"

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._waits = training.waits_by_tool
        self._first_arrival: dict[str, float] = {}
        self._not_pinned: dict[str, float] = {}
        """Arrival of each waiting request whose session had no pin when it came."""
        self._queue_delay_s = 0.0
        self._last_step_at = 0.0

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._waiting = OrderedQueue(self._key)
        engine.scheduler.waiting = self._waiting

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        super().turn_arrived(session, request, now)
        self._first_arrival.setdefault(session, now)
        if session not in self.pins:
            self._not_pinned[request.request_id] = request.arrival_time

    def begin_step(self, now: float) -> None:
        for request in self.engine.scheduler.running:
            if (arrived := self._not_pinned.pop(request.request_id, None)) is not None:
                delay_s = self._last_step_at - arrived
                self._queue_delay_s += _NEWEST_WEIGHT * (delay_s - self._queue_delay_s)
        super().begin_step(now)
        self._waiting.begin_step()
        self._last_step_at = now

    def ttl_s(self, session: str, away: Away) -> float:
        if not away.turn.tool_calls:
            return 0.0
        names = {call.name for call in away.turn.tool_calls}
        waits = max(
            (self._waits[name] for name in names if name in self._waits), key=np.mean, default=None
        )
        if waits is None:
            waits = self._waits[""]
        if not len(waits):
            return 0.0
        context = away.turn.prompt_tokens + away.turn.output_tokens
        benefit_s = self._queue_delay_s * ETA + self.engine.hardware.prefill_seconds(context)
        gains = np.arange(1, len(waits) + 1) / len(waits) * benefit_s - waits
        best = int(np.argmax(gains))
        return float(waits[best]) if gains[best] > 0 else 0.0

    def _key(self, request: Any) -> tuple[bool, float]:
        session = request.session_id
        return (session not in self.pins, self._first_arrival[session])
