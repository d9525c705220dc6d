"""A steady load on one scheduler: so many sessions away, so many requests waiting, at every step.

Sessions take turns in a closed loop: when a request finishes, its session goes away, and the one
that is due first returns. Each turn's prompt is the last one's and some more, until the session
ends and another takes its place. Sessions together want PRESSURE times the pool. The clock is
virtual, and blocks are named instead of hashed, so that nothing but the scheduler costs time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

# Before vLLM, whose environment it sets.
from cachewise_bench import bare_scheduler  # isort: skip
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.outputs import ModelRunnerOutput

from cachewise_bench.prompts import Prompt
from cachewise_bench.virtual_engine import (
    LAST_TOKEN,
    MAX_CONTEXT_TOKENS,
    make_request,
    next_token,
)

RUNNING = 8
PRESSURE = 1.5
OUTPUT_TOKENS = 64
STEP_TOKENS = 2048
BLOCK_TOKENS = 16
SYSTEM_TOKENS = 128
"""Of every prompt: the same text."""
MEAN_WAIT_S = 20.0
_TURNS = 16
"""Of a session. Its context grows from a half to three halves of the mean."""
_SETTLING_STEPS = 100
_FIXED_S, _TOKEN_S = 0.01, 5e-5
"""What a step takes on the virtual clock, and each of its tokens."""
_CURVE_S = (0.0, *(0.01 * 1.4**i for i in range(31)))


class Size(NamedTuple):
    """What the cost of a step may depend on."""

    blocks: int
    sessions: int
    """Away in a tool call, each with a forecast."""
    waiting: int
    """Requests in the queue, of other sessions than these."""


@dataclass(slots=True)
class _Session:
    name: str
    turn: int
    wait_s: float = MEAN_WAIT_S


class SteadyLoad:
    """One scheduler under the load. Equal arguments give equal requests."""

    def __init__(self, scheduler_class: Any, size: Size, seed: int = 0) -> None:
        self.now = 0.0
        self.scheduler = bare_scheduler.make_scheduler(
            scheduler_class,
            num_blocks=size.blocks,
            block_size=BLOCK_TOKENS,
            step_tokens=STEP_TOKENS,
            settings={},
            scheduling={"max_num_seqs": RUNNING},
        )
        manager = self.scheduler.kv_cache_manager
        self.scheduler.max_model_len = manager.max_model_len = MAX_CONTEXT_TOKENS
        self.scheduler.clock = lambda: self.now
        self._hook: Any = getattr(self.scheduler, "_hook", None)
        self._chance = random.Random(seed)
        self._total, self._in_engine = sum(size) + RUNNING - size.blocks, size.waiting + RUNNING
        self._mean_blocks = max(int(PRESSURE * size.blocks / self._total), 1)
        self._here: dict[str, _Session] = {}
        """Sessions with a request in the engine, by its id."""
        self._away: list[tuple[float, int, _Session]] = []
        """By when they are due."""
        self._requests = self._departures = 0
        self._updates: list[ForecastUpdate] = []
        for i in range(self._total):
            session = _Session(f"{i}", self._chance.randrange(_TURNS))
            heapq.heappush(self._away, (self._chance.random(), -i, session))
        self._settle()

    def step(self, measured: Callable[[Callable[[], Any]], Any]) -> int:
        """One step; how many requests were in it. measured: calls what the scheduler has to do."""
        arrivals = [self._arrival() for _ in range(self._in_engine - len(self._here))]
        updates, self._updates = self._updates, []
        scheduler, hook = self.scheduler, self._hook

        def schedule() -> Any:
            for update in updates:
                hook.take_forecast(update)
            for request in arrivals:
                scheduler.add_request(request)
            return scheduler.schedule()

        plan = measured(schedule)
        self.now += _FIXED_S + _TOKEN_S * plan.total_num_scheduled_tokens
        requests = [scheduler.requests[i] for i in plan.num_scheduled_tokens]
        sampled = [
            [next_token(r)] if r.num_computed_tokens >= r.num_tokens else [] for r in requests
        ]
        done = [r for r, new in zip(requests, sampled, strict=True) if new == [LAST_TOKEN]]
        output = ModelRunnerOutput(
            req_ids=[r.request_id for r in requests],
            req_id_to_index={r.request_id: i for i, r in enumerate(requests)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        measured(lambda: scheduler.update_from_output(plan, output))
        for request in done:
            self._go_away(self._here.pop(request.request_id))
        return len(requests)

    # ---- steps ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Until every session has had a turn, each with an answer of one token; then some more."""
        self._output_tokens = 1
        while self._requests - len(self._here) < self._total:
            self.step(_unmeasured)
        self._output_tokens = OUTPUT_TOKENS
        for _ in range(_SETTLING_STEPS):
            self.step(_unmeasured)

    def _arrival(self) -> Any:
        _, _, session = heapq.heappop(self._away)
        self._requests += 1
        name = f"{session.name}-{self._requests}"
        self._here[name] = session
        tokens = int(self._mean_blocks * BLOCK_TOKENS * (0.5 + session.turn / _TURNS))
        shared = (("system", min(SYSTEM_TOKENS, tokens)),)
        prompt = Prompt(session.name, max(tokens, 1), self._output_tokens, shared, session.name)
        return make_request(name, prompt, BLOCK_TOKENS, self.now)

    def _go_away(self, session: _Session) -> None:
        session.turn += 1
        forecast: Forecast | None = None
        key, is_over = session.name, session.turn == _TURNS
        if is_over:
            session = replace(session, name=f"{session.name}'", turn=0)
        else:
            session.wait_s = self._chance.lognormvariate(0.0, 1.5) * MEAN_WAIT_S
            remaining = tuple(session.wait_s + 0.5 * elapsed_s for elapsed_s in _CURVE_S)
            forecast = Forecast(_CURVE_S, remaining)
        self._departures += 1
        heapq.heappush(self._away, (self.now + session.wait_s, self._departures, session))
        if self._hook is not None:
            key = hash_session(key, "")
            self._updates.append(ForecastUpdate(key, self.now, forecast, ended=is_over))


def _unmeasured(work: Callable[[], Any]) -> Any:
    return work()
