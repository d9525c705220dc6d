"""The replay's own promises; what every policy must keep is in policies/test_contract.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.policies.queues import OrderedQueue
from cachewise_bench.prompts import Prompt
from cachewise_bench.replay import IDLE_POLL_S, START_STAGGER_S, Outcome, Replay
from cachewise_bench.virtual_engine import make_request
from cachewise_bench.workload import Session, Turn, WorkloadError

from .policies.small import CHUNK, TRAINING, hardware, outcome, prepared, small_sessions

FEW_POOL_BLOCKS = 2_000
"""Five sessions of 5,800 tokens fill it to 90 %; five of 120,000 fill the paper's to 80 %."""


def _few_sessions(count: int) -> list[Session]:
    """With long contexts and short answers."""
    return [
        Session(f"s{i}", tuple(Turn(5_000 + 250 * t + 9 * i, 16, (), 1.0 + i) for t in range(4)))
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 5])
def test_few_sessions_take_the_same_time_under_every_policy(count: int) -> None:
    sessions = _few_sessions(count)
    stock = outcome("vllm", sessions, FEW_POOL_BLOCKS)
    for name in POLICIES:
        mine = outcome(name, sessions, FEW_POOL_BLOCKS)
        assert _latency_s(mine) == pytest.approx(_latency_s(stock), rel=0.01), name


@pytest.mark.parametrize("name", ["vllm", "cachewise-c20", "continuum", "thunder", "ours"])
def test_a_clock_that_jumps_changes_no_decision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = outcome(name, small_sessions())
    jumps = random.Random(0)
    for clock in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{clock}", lambda: jumps.uniform(-1e6, 1e9))
    assert _decisions(outcome(name, small_sessions())) == _decisions(steady)


def test_a_session_alone_takes_what_the_cost_model_says() -> None:
    turns = (Turn(1_000, 20, (), 5.0), Turn(1_500, 10, (), 0.0))
    first, second = outcome("vllm", [Session("alone", turns)]).requests
    card = hardware()
    # The first prompt token that is not in a full block of the 1,019 that were computed.
    known = 1_019 // card.block_size * card.block_size
    assert first.latency_s == pytest.approx(
        card.prefill_seconds(1_000) + _decode_s(range(1_001, 1_020))
    )
    assert (first.hit_tokens, second.hit_tokens) == (0, known)
    assert second.arrived_s == pytest.approx(first.finished_s + 5.0)
    assert second.latency_s == pytest.approx(
        card.prefill_seconds(1_500, start=known, chunk=CHUNK) + _decode_s(range(1_501, 1_510))
    )
    assert second.useful_tokens == 1_510 - 1_020


def test_sessions_start_together_and_return_when_their_tools_have() -> None:
    sessions = small_sessions()
    mine = outcome("vllm", sessions)
    ended: dict[int, float] = {}
    for request in sorted(mine.requests, key=lambda r: r.turn):
        wait_s = sessions[request.session].turns[request.turn - 1].wait_s if request.turn else 0.0
        due = ended.get(request.session, request.session * START_STAGGER_S) + wait_s
        assert request.arrived_s == pytest.approx(due)
        ended[request.session] = request.finished_s
    walls = [ended[i] - i * START_STAGGER_S for i in range(len(sessions))]
    assert mine.session_walls_s == pytest.approx(walls)


def test_whoever_is_admitted_before_an_earlier_one_has_overtaken_it() -> None:
    sessions = small_sessions(count=20)
    mine = outcome("vllm-prefix", sessions)
    for request in mine.requests:
        ahead = sum(
            request.arrived_s < other.arrived_s and other.admitted_s < request.admitted_s
            for other in mine.requests
        )
        assert request.overtakes == ahead
    assert max(r.overtakes for r in mine.requests) > 0
    assert all(r.overtakes == 0 for r in outcome("vllm", sessions).requests)


def test_progress_is_told_for_each_turn() -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    sessions = small_sessions(count=2, turns=3)
    _replay(sessions, progress=tell).run()
    assert told == [(n, 6) for n in range(1, 7)]


def test_a_session_longer_than_the_pool_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="session small/0 needs 100 blocks and the pool"):
        prepared("vllm", small_sessions(turns=2), pool_blocks=80)


def test_a_policy_that_admits_nobody_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachewise_bench.replay.STUCK_S", 0.5)
    replay = prepared("vllm", small_sessions(count=2))
    replay.engine.scheduler.waiting = OrderedQueue(is_eligible=lambda request: False)
    with pytest.raises(WorkloadError, match="vllm has let none of 2 waiting requests run since 0"):
        replay.run()


def test_where_none_may_run_the_policy_is_asked_again_before_the_next_arrival() -> None:
    turns = (Turn(100, 16, (), 60.0), Turn(200, 16, (), 0.0))
    replay = _replay([Session("first", turns), Session("second", turns[1:])])
    parked_until_s = 7.0
    replay.engine.scheduler.waiting = OrderedQueue(
        is_eligible=lambda request: (
            request.session_id == "first" or replay.engine.now >= parked_until_s
        )
    )
    admitted = {(r.session, r.turn): r.admitted_s for r in replay.run().requests}
    assert admitted[1, 0] == pytest.approx(parked_until_s, abs=2 * IDLE_POLL_S)
    assert admitted[0, 1] > 60.0


def test_a_scheduler_sees_what_a_request_allows_and_not_how_long_its_answer_is() -> None:
    prompt = Prompt("s", 100, 5, (), "s", max_tokens=1_000)
    engine = prepared("vllm", small_sessions(count=1)).engine
    request = make_request("r", prompt, engine.hardware.block_size, 0.0)
    engine.add(request)
    done: list[object] = []
    while not done:
        _, _, done = engine.step(0.0)
    assert (request.max_tokens, request.num_output_tokens) == (1_000, 5)
    assert not engine.scheduler.has_unfinished_requests()


def test_no_sessions_are_an_error() -> None:
    with pytest.raises(WorkloadError, match="no sessions"):
        _replay([])


def _replay(
    sessions: list[Session], progress: Callable[[int, int], None] = lambda done, total: None
) -> Replay:
    return Replay(sessions, POLICIES["vllm"](TRAINING), hardware(), CHUNK, progress=progress)


def _decode_s(contexts: range) -> float:
    return sum(hardware().step_seconds([(1, context)]) for context in contexts)


def _latency_s(mine: Outcome) -> float:
    return sum(request.latency_s for request in mine.requests)


def _decisions(mine: Outcome) -> Outcome:
    return replace(mine, scheduler_cpu_s=0.0)
