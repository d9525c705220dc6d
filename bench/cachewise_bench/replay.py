"""The replay: agent sessions as closed loops over the virtual engine, under one policy.

Each session sends its next request when its tool has returned, which is the traced wait after the
response: so a policy that serves faster also sees the next request sooner. A turn that starts
subagents also waits for the last of them, which are sessions like any other. All decisions are made
by vLLM's scheduler and the policy's queues; the same arguments give the same result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachewise_bench.cost_model import Hardware
from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.prompts import Prompts
from cachewise_bench.virtual_engine import VirtualEngine, make_request, make_scheduler
from cachewise_bench.workload import Fork, Session, WorkloadError

START_STAGGER_S = 0.001

IDLE_POLL_S = 0.05
"""Where requests wait and none may run, vLLM's loop asks the scheduler again every millisecond,
since its answer may change with time; here after this, twice as often as CacheWise decides anew."""

STUCK_S = 600.0
"""A policy that lets nobody run for so long, while nobody is away, never will."""


@dataclass(frozen=True)
class RequestRecord:
    """What one request saw; seconds of the virtual clock."""

    session: int
    """Its place among the sessions, subagents behind them."""
    turn: int
    arrived_s: float
    admitted_s: float
    first_token_s: float
    finished_s: float
    hit_tokens: int
    prompt_tokens: int
    useful_tokens: int
    """Prompt tokens that are new in this turn, and the answer."""
    overtakes: int
    preemptions: int

    @property
    def latency_s(self) -> float:
        return self.finished_s - self.arrived_s


@dataclass
class _Live:
    request: Any
    session: int
    turn: int
    admitted_s: float = -1.0
    first_token_s: float = -1.0
    hit_tokens: int = 0
    overtakes: int = 0


@dataclass(frozen=True)
class Outcome:
    """A finished replay: every request, and the engine's counts."""

    policy: str
    requests: tuple[RequestRecord, ...]
    session_walls_s: tuple[float, ...]
    makespan_s: float
    computed_tokens: int
    evicted_blocks: int
    refilled_blocks: int
    loaded_blocks: int
    steps: int
    scheduler_cpu_s: float


@dataclass
class Replay:
    """One run. Raises WorkloadError for a session that the pool cannot hold, and for
    a policy that never lets anybody run."""

    sessions: list[Session]
    policy: Policy
    hardware: Hardware
    chunk: int = 512
    offload_gib: float = 0.0
    """Host memory for evicted blocks."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with (turns done, turns in all)."""
    _due: list[tuple[float, int]] = field(default_factory=list)
    _live: dict[str, _Live] = field(default_factory=dict)
    _records: list[RequestRecord] = field(default_factory=list)
    _worked: tuple[int, float] = (0, 0.0)
    """Steps when the engine last had work, or somebody was away, and that moment."""

    def __post_init__(self) -> None:
        if not self.sessions:
            raise WorkloadError("no sessions to replay")
        self.prompts = Prompts(self.sessions)
        self.sessions = self.prompts.sessions
        self.hardware.check_holds(self.sessions)
        policy, scheduler = self.policy, self._scheduler()
        self.engine = VirtualEngine(scheduler, self.hardware)
        policy.attach(self.engine)
        self.engine.watch()
        self._next_turn = [0] * len(self.sessions)
        self._started_s = [0.0] * len(self.sessions)
        self._ended_s = [0.0] * len(self.sessions)
        self._awaited: dict[Fork, tuple[int, float]] = {}
        """For a turn whose subagents run: how many do, and when its own wait ends."""

    def run(self) -> Outcome:
        total = sum(len(s.turns) for s in self.sessions)
        for i, fork in enumerate(self.prompts.forks):
            if fork is None:
                self._start(i, i * START_STAGGER_S)
        while self._due or self._live:
            self._admit_arrivals()
            self.policy.begin_step(self.engine.now)
            idle_until = self.engine.now + IDLE_POLL_S
            if self._due:
                idle_until = min(idle_until, self._due[0][0])
            admitted, first, done = self.engine.step(idle_until)
            self._note_admitted(admitted)
            for request in first:
                self._live[request.request_id].first_token_s = self.engine.now
            for request in done:
                self._finish(self._live.pop(request.request_id))
                self.progress(len(self._records), total)
            self._check_that_work_goes_on()
        return self._outcome()

    # ---- steps ----------------------------------------------------------------------------------

    def _admit_arrivals(self) -> None:
        engine = self.engine
        if not self._live and self._due and not engine.is_copying:
            engine.now = max(engine.now, self._due[0][0])
        while self._due and self._due[0][0] <= engine.now:
            arrived_s, index = heapq.heappop(self._due)
            session, turn = self.sessions[index], self._next_turn[index]
            prompt = self.prompts.prompt(index, turn)
            request = make_request(f"{index}-{turn}", prompt, self.hardware.block_size, arrived_s)
            self._live[request.request_id] = _Live(request, index, turn)
            self.policy.turn_arrived(session.name, request, engine.now)
            engine.add(request)

    def _note_admitted(self, admitted: dict[Any, int]) -> None:
        """Those still waiting that arrived earlier were overtaken."""
        if not admitted:
            return
        for request, hit_tokens in admitted.items():
            live = self._live[request.request_id]
            if live.admitted_s < 0:
                live.admitted_s, live.hit_tokens = self.engine.now, hit_tokens
        for live in self._live.values():
            if live.admitted_s < 0:
                arrived = live.request.arrival_time
                live.overtakes += sum(r.arrival_time > arrived for r in admitted)

    def _finish(self, live: _Live) -> None:
        session, engine = self.sessions[live.session], self.engine
        turn = session.turns[live.turn]
        self._records.append(
            RequestRecord(
                live.session,
                live.turn,
                live.request.arrival_time,
                live.admitted_s,
                live.first_token_s,
                engine.now,
                live.hit_tokens,
                turn.prompt_tokens,
                turn.context_tokens - self.prompts.known_tokens(live.session, live.turn),
                live.overtakes,
                live.request.num_preemptions,
            )
        )
        self._next_turn[live.session] = live.turn + 1
        if live.turn + 1 == len(session.turns):
            self._end(live.session)
            return
        returns_at = engine.now + turn.wait_s
        self.policy.turn_ended(session.name, Away(turn, engine.now, returns_at))
        self._go_away(Fork(live.session, live.turn), returns_at)

    def _go_away(self, at: Fork, returns_at: float) -> None:
        """Starts the turn's subagents; without any the session returns by itself."""
        subagents = [i for i, fork in enumerate(self.prompts.forks) if fork == at]
        for index in subagents:
            self._start(index, self.engine.now)
        if subagents:
            self._awaited[at] = (len(subagents), returns_at)
        else:
            heapq.heappush(self._due, (returns_at, at.parent))

    def _check_that_work_goes_on(self) -> None:
        engine, (steps, at) = self.engine, self._worked
        if engine.steps > steps or self._due:
            self._worked = (engine.steps, engine.now)
        elif engine.now - at > STUCK_S:
            raise WorkloadError(
                f"{self.policy.name} has let none of {len(self._live)} waiting requests run since "
                f"{at:,.0f} s, with {len(self._records)} turns done"
            )

    def _start(self, index: int, now: float) -> None:
        self._started_s[index] = now
        heapq.heappush(self._due, (now, index))

    def _end(self, index: int) -> None:
        """The parent of the last subagent of a turn returns."""
        now = self._ended_s[index] = self.engine.now
        self.policy.session_ended(self.sessions[index].name, now)
        if (fork := self.prompts.forks[index]) is None:
            return
        running, returns_at = self._awaited.pop(fork)
        if running > 1:
            self._awaited[fork] = (running - 1, returns_at)
        else:
            heapq.heappush(self._due, (max(now, returns_at), fork.parent))

    def _outcome(self) -> Outcome:
        engine = self.engine
        times = zip(self._started_s, self._ended_s, strict=True)
        walls = tuple(ended - started for started, ended in times)
        return Outcome(
            self.policy.name,
            tuple(self._records),
            walls,
            engine.now,
            engine.computed_tokens,
            engine.evicted_blocks,
            engine.refilled_blocks,
            engine.loaded_blocks,
            engine.steps,
            engine.scheduler_cpu_s,
        )

    def _scheduler(self) -> Any:
        policy = self.policy
        return make_scheduler(
            policy.scheduler_class(),
            self.hardware,
            self.chunk,
            policy.long_prefill_threshold,
            settings=policy.settings(),
            offload_gib=self.offload_gib,
        )
