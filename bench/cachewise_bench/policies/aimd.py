"""aimd: as many sessions may run as the cache bears, found as TCP finds its window.

CONCUR/PACE (2601.22705, its agent-level admission). A window limits the active sessions. Every
period:
    window + ALPHA    when the cache use is below LOW of the pool, and the window is full
    window * BETA     when it is above HIGH and the hit rate of admitted requests is below HITS
    unchanged         otherwise
A session keeps its place over its tool calls until it ends or the window shrinks; then those that
came last and are not running lose theirs, and wait for one at their next request. Eviction is LRU.

Open, and chosen here: the constants below, the period (5 s), the first window (16), who enters (the
longest waiting request), and what the use is. Blocks in use would not do: with small prefill chunks
a thrashing engine has few requests running, so use is low just when it should warn. Here it is the
contexts of the active sessions. While nothing runs the longest waiting session is let in.
"""

from __future__ import annotations

from typing import Any

from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.queues import OrderedQueue

ALPHA, BETA = 2.0, 0.5
LOW, HIGH, HITS = 0.8, 0.95, 0.8
FIRST_WINDOW, PERIOD_S = 16.0, 5.0


class Aimd(Policy):
    name = "aimd"
    source = "CONCUR 2601.22705: AIMD on active sessions; FCFS, LRU"

    def __init__(self) -> None:
        super().__init__()
        self._window = FIRST_WINDOW
        self._active: dict[str, None] = {}
        """In the order of entry."""
        self._context_tokens: dict[str, int] = {}
        self._looked_up: dict[str, tuple[int, int]] = {}
        self._hits = self._prompt = 0
        self._period_ends_at = PERIOD_S

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._waiting = OrderedQueue(is_eligible=self._may_run)
        engine.scheduler.waiting = self._waiting
        manager = engine.scheduler.kv_cache_manager
        look_up = manager.get_computed_blocks

        def noted_look_up(request: Any) -> Any:
            found = look_up(request)
            self._looked_up[request.request_id] = (found[1], request.num_tokens)
            return found

        manager.get_computed_blocks = noted_look_up

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        super().turn_arrived(session, request, now)
        self._context_tokens[session] = request.num_tokens

    def session_ended(self, session: str, now: float) -> None:
        super().session_ended(session, now)
        self._active.pop(session, None)

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        running = self.engine.scheduler.running
        for request in running:
            hits, prompt = self._looked_up.pop(request.request_id, (0, 0))
            self._hits += hits
            self._prompt += prompt
        if now >= self._period_ends_at:
            self._adapt()
            self._period_ends_at = now + PERIOD_S
        self._let_go({request.session_id for request in running})
        self._let_in(bool(running))

    def _adapt(self) -> None:
        hardware = self.engine.hardware
        tokens = sum(self._context_tokens[session] for session in self._active)
        used = tokens / (hardware.pool_blocks * hardware.block_size)
        if used < LOW and len(self._active) >= self._window:
            self._window += ALPHA
        elif used > HIGH and self._prompt and self._hits < HITS * self._prompt:
            self._window = max(1.0, self._window * BETA)
        self._hits = self._prompt = 0

    def _let_go(self, running: set[str]) -> None:
        for session in [s for s in reversed(self._active) if s not in running]:
            if len(self._active) <= self._window:
                return
            del self._active[session]

    def _let_in(self, any_runs: bool) -> None:
        for request in self._waiting:
            if len(self._active) >= self._window and (any_runs or self._waiting):
                return
            self._active[request.session_id] = None

    def _may_run(self, request: Any) -> bool:
        return request.session_id in self._active or request.num_preemptions > 0
