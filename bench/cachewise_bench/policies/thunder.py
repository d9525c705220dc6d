"""thunder: sessions are paused and resumed so that the active ones' contexts fit the pool.

ThunderAgent (2602.13692, and its released router). An active session is reasoning (its request is
here) or acting (in a tool call). Every PERIOD_S:
    working set = tokens of the reasoning + sum of tokens * 2^-t of the acting - what they share
    above the pool's size, sessions are paused: acting ones, then reasoning ones at their next
    request, the shortest first
    below it, paused ones are resumed while they fit whole: those that have a request here and have
    run before, then new ones, then acting ones, the shortest first
A new session enters at once when nobody is paused and it fits. Eviction is LRU, admission FCFS.

Open: the unit of t (periods here; the released code uses no decay), and what "share" is (the tokens
of running requests less their blocks in use, as in the code). In a real engine all paused sessions
can wait for the next check while nothing runs; here that check comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.queues import OrderedQueue

PERIOD_S = 5.0
BUFFER_TOKENS = 100
"""Kept for each active session's answer."""


@dataclass
class _Program:
    session: str
    tokens: int
    acting_since: float | None = None
    is_new: bool = True
    is_active: bool = False
    is_marked: bool = False
    """To be paused when its request has ended."""

    def weight(self, now: float) -> float:
        """Its share of the working set, in tokens."""
        if self.acting_since is None:
            return self.tokens + BUFFER_TOKENS
        decay: float = 2.0 ** -((now - self.acting_since) / PERIOD_S)
        return self.tokens * decay + BUFFER_TOKENS


class Thunder(Policy):
    name = "thunder"
    source = "ThunderAgent 2602.13692: pause and resume by working set; FCFS, LRU"

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[str, _Program] = {}
        self._next_check_at = PERIOD_S

    def attach(self, engine: Any) -> None:
        super().attach(engine)
        self._waiting = OrderedQueue(is_eligible=self._may_run)
        engine.scheduler.waiting = self._waiting
        self._capacity: int = engine.hardware.pool_blocks * engine.hardware.block_size

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        super().turn_arrived(session, request, now)
        program = self._programs.setdefault(session, _Program(session, request.num_tokens))
        program.tokens, program.acting_since = request.num_tokens, None
        if program.is_new and not any(not p.is_active for p in self._others(program)):
            program.is_active = program.tokens + BUFFER_TOKENS <= self._room(now)

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        program = self._programs[session]
        program.tokens = away.turn.prompt_tokens + away.turn.output_tokens
        program.acting_since, program.is_new = away.since, False
        if program.is_marked:
            program.is_active = program.is_marked = False

    def session_ended(self, session: str, now: float) -> None:
        super().session_ended(session, now)
        del self._programs[session]

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        stands_still = not self.engine.scheduler.running and not self._waiting
        if now >= self._next_check_at or stands_still:
            self._pause(now)
            self._resume(now)
            self._next_check_at = now + PERIOD_S
        if len(self._waiting) and not self.engine.scheduler.running and not self._waiting:
            self._resume_one()

    def _pause(self, now: float) -> None:
        active = [p for p in self._programs.values() if p.is_active and not p.is_marked]
        active.sort(key=lambda p: (p.acting_since is None, p.tokens, p.session))
        for program in active:
            if self._room(now) >= 0:
                return
            if program.acting_since is None:
                program.is_marked = True
            else:
                program.is_active = False

    def _resume(self, now: float) -> None:
        paused = [p for p in self._programs.values() if not p.is_active]
        paused.sort(key=lambda p: (p.acting_since is not None, p.is_new, p.tokens, p.session))
        for program in paused:
            if program.tokens + BUFFER_TOKENS <= self._room(now):
                program.is_active = True

    def _resume_one(self) -> None:
        """Nothing fits and nothing runs: the shortest that waits, or all would wait for ever."""
        names = {request.session_id for request in self._waiting}
        shortest = min(
            (self._programs[name] for name in names), key=lambda p: (p.tokens, p.session)
        )
        shortest.is_active = True

    def _room(self, now: float) -> float:
        """Tokens that the working set leaves free; a marked session's count as free already."""
        active = (p for p in self._programs.values() if p.is_active and not p.is_marked)
        return self._capacity + self._shared_tokens() - sum(p.weight(now) for p in active)

    def _shared_tokens(self) -> int:
        scheduler = self.engine.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        used_blocks = pool.num_gpu_blocks - pool.get_num_free_blocks()
        used_tokens: int = used_blocks * self.engine.hardware.block_size
        computed: int = sum(r.num_computed_tokens for r in scheduler.running)
        return max(computed - used_tokens, 0)

    def _others(self, program: _Program) -> list[_Program]:
        return [p for p in self._programs.values() if p is not program]

    def _may_run(self, request: Any) -> bool:
        return self._programs[request.session_id].is_active or request.num_preemptions > 0
