"""plas: the session that has been served least goes first.

Autellix (2502.13965), its PLAS, program-level attained service. A session's priority is the
service that all its requests have had, in seconds of running, in discrete levels: within a level
first come first served. A session that has waited more than STARVED times its service since it was
last promoted starts again at the top level. Eviction is LRU.

Open: the levels (doubling from 2 s here) and the ratio (10 here). Left out: Autellix also preempts
running requests of lower levels and swaps them out; vLLM's FCFS scheduler preempts only for want of
blocks.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import OrderedQueue

FIRST_LEVEL_S = 2.0
STARVED = 10.0


class Plas(Policy):
    name = "plas"
    source = "Autellix 2502.13965, PLAS: least attained service, anti-starvation; LRU"

    def __init__(self) -> None:
        super().__init__()
        self._served_s: dict[str, float] = defaultdict(float)
        self._waited_s: dict[str, float] = defaultdict(float)
        self._last_step_at = 0.0

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._waiting = OrderedQueue(self._level)
        engine.scheduler.waiting = self._waiting

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        step_s, self._last_step_at = now - self._last_step_at, now
        for request in self.engine.scheduler.running:
            self._served_s[request.session_id] += step_s
        for request in self._waiting:
            self._wait(request.session_id, step_s)
        self._waiting.begin_step()

    def _wait(self, session: str, step_s: float) -> None:
        self._waited_s[session] += step_s
        if self._waited_s[session] > STARVED * max(self._served_s[session], FIRST_LEVEL_S):
            self._waited_s[session] = self._served_s[session] = 0.0

    def _level(self, request: Any) -> int:
        return int(self._served_s[request.session_id] / FIRST_LEVEL_S).bit_length()
