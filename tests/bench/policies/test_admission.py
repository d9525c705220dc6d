"""The rivals that decide who may run, or whose blocks are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from cachewise_bench.policies.base import Away
from cachewise_bench.policies.continuum import Continuum
from cachewise_bench.policies.plas import Plas
from cachewise_bench.policies.thunder import PERIOD_S, Thunder
from cachewise_bench.policies.training import Training
from cachewise_bench.workload import Session, ToolCall, Turn

from .small import hardware, outcome, prepared, small_sessions


@dataclass
class _Request:
    session_id: str
    num_tokens: int
    arrival_time: float = 0.0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = f"of {self.session_id}"


def _engine(pool_blocks: int) -> Any:
    """What the policies see of an engine in which nothing runs."""
    pool = SimpleNamespace(num_gpu_blocks=pool_blocks, get_num_free_blocks=lambda: pool_blocks)
    manager = SimpleNamespace(block_pool=pool, allocate_slots=None)
    scheduler = SimpleNamespace(running=[], waiting=None, kv_cache_manager=manager)
    return SimpleNamespace(scheduler=scheduler, hardware=hardware(pool_blocks))


def _tool_turn(name: str, wait_s: float) -> Turn:
    return Turn(1000, 20, (ToolCall(name, "{}"),), wait_s)


def test_a_window_of_one_lets_one_session_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachewise_bench.policies.aimd.FIRST_WINDOW", 1.0)
    monkeypatch.setattr("cachewise_bench.policies.aimd.ALPHA", 0.0)
    replay = prepared("aimd", small_sessions())
    running, step = [], replay.engine.step

    def watched_step(idle_until: float) -> Any:
        running.append(len(replay.engine.scheduler.running))
        return step(idle_until)

    monkeypatch.setattr(replay.engine, "step", watched_step)
    replay.run()
    assert max(running) == 1


def test_pinned_sessions_compute_less_again_than_under_lru() -> None:
    sessions = small_sessions()
    pinned, stock = outcome("fixed-ttl", sessions), outcome("vllm", sessions)
    assert pinned.computed_tokens < stock.computed_tokens


@pytest.fixture
def thunder() -> Iterator[Thunder]:
    """With a pool of 1,600 tokens, and sessions a, b, c that came with 700 each."""
    policy = Thunder()
    policy.attach(_engine(100))
    for name in "abc":
        request = _Request(name, 700)
        policy.turn_arrived(name, request, 0.0)
        policy.engine.scheduler.waiting.add_request(request)
    yield policy


def _may_run(policy: Thunder) -> list[str]:
    waiting = policy.engine.scheduler.waiting
    names = []
    while waiting:
        names.append(waiting.pop_request().session_id)
    return names


def test_thunder_admits_new_sessions_while_they_fit(thunder: Thunder) -> None:
    assert _may_run(thunder) == ["a", "b"]


def test_thunder_resumes_a_paused_session_once_an_acting_one_has_decayed(thunder: Thunder) -> None:
    assert _may_run(thunder) == ["a", "b"]
    thunder.turn_ended("a", Away(_tool_turn("Bash", 999.0), 0.0, 999.0))
    thunder.begin_step(PERIOD_S)
    thunder.begin_step(10 * PERIOD_S)
    assert _may_run(thunder) == ["c"]


def _continuum(waits_s: dict[str, list[float]]) -> Continuum:
    sessions = [
        Session(name, (*(_tool_turn(name, wait_s) for wait_s in waits), _tool_turn(name, 0.0)))
        for name, waits in waits_s.items()
    ]
    policy = Continuum(Training(tuple(sessions)))
    policy.attach(_engine(10_000))
    return policy


def test_continuum_holds_for_as_long_as_it_pays() -> None:
    policy = _continuum({"Read": [0.01] * 9 + [500.0], "Bash": [100.0] * 10})
    long_context = 60_000
    ttl = {
        name: policy.ttl_s("s", Away(Turn(long_context, 9, (ToolCall(name, ""),), 0.0), 0.0, 0.0))
        for name in ("Read", "Bash")
    }
    assert ttl == {"Read": 0.01, "Bash": 0.0}


def test_continuum_does_not_hold_for_a_person() -> None:
    policy = _continuum({"Read": [0.01]})
    assert policy.ttl_s("s", Away(Turn(60_000, 9, (), 0.0), 0.0, 0.0)) == 0.0


def test_plas_puts_the_least_served_session_first_until_another_starves() -> None:
    policy = Plas()
    policy.attach(_engine(100))
    scheduler = policy.engine.scheduler
    scheduler.running = [_Request("served", 10)]
    policy.begin_step(60.0)
    scheduler.running = []
    for name, arrival in (("served", 60.0), ("new", 61.0)):
        scheduler.waiting.add_request(_Request(name, 10, arrival))
    assert scheduler.waiting.peek_request().session_id == "new"
    policy.begin_step(60.0 + 11 * 60.0)
    assert scheduler.waiting.peek_request().session_id == "served"
