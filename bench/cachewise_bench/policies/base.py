"""What a policy is: queues put into vLLM's scheduler, and what it is told of the sessions.

The base class is stock vLLM: first come first served, least recently used evicted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cachewise_bench.workload import Turn


@dataclass(frozen=True)
class Away:
    """A session's idle spell. A policy that does not claim to be an oracle must not look at
    returns_at, nor at turn.wait_s and the calls' durations."""

    turn: Turn
    since: float
    returns_at: float


class Policy:
    """Stock vLLM, told of everything and doing nothing. `now` is seconds of the virtual clock."""

    name: ClassVar[str] = "vllm"
    source: ClassVar[str] = "stock vLLM"
    """Section and formula of the publication, and what it leaves open."""
    long_prefill_threshold: ClassVar[int] = 0

    def __init__(self) -> None:
        self.engine: Any = None
        self.away: dict[str, Away] = {}
        """The sessions that are away in a tool call or a human pause."""
        self.ended: set[str] = set()

    def scheduler_class(self) -> Any:
        from vllm.v1.core.sched.scheduler import Scheduler

        return Scheduler

    def settings(self) -> dict[str, object]:
        """The `cachewise` section of additional_config."""
        return {}

    def attach(self, engine: Any) -> None:
        """Puts the policy's queues into engine.scheduler (a VirtualEngine's)."""
        self.engine = engine

    def turn_arrived(self, session: str, request: Any, now: float) -> None:
        self.away.pop(session, None)

    def turn_ended(self, session: str, away: Away) -> None:
        self.away[session] = away

    def session_ended(self, session: str, now: float) -> None:
        self.ended.add(session)

    def begin_step(self, now: float) -> None:
        """Called before each scheduling step."""
