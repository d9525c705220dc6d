"""What every policy must keep, whatever it decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cachewise_bench.policies.belady import least_misses
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.replay import Outcome, Replay

from .small import BLOCK, POOL_BLOCKS, in_fixed_order, outcome, prepared, small_sessions

SESSIONS = small_sessions()
FIXED = in_fixed_order(small_sessions(count=5, turns=6))
ROOMY_BLOCKS = 6 * POOL_BLOCKS
TURNS = sum(len(session.turns) for session in SESSIONS)

each_policy = pytest.mark.parametrize("name", POLICIES)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Each policy's outcome on the same sessions; its second run is compared with it."""
    return {name: outcome(name, SESSIONS) for name in POLICIES}


@pytest.fixture(scope="module")
def fixed_order() -> dict[str, Outcome]:
    """One request at a time: sessions start far apart, and return far apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cachewise_bench.replay.START_STAGGER_S", 12_345.0)
        return {name: outcome(name, FIXED) for name in POLICIES}


@pytest.fixture(scope="module")
def stock_without_pressure() -> Outcome:
    return outcome("vllm", SESSIONS, ROOMY_BLOCKS)


@each_policy
def test_every_turn_is_answered(name: str, outcomes: dict[str, Outcome]) -> None:
    requests = outcomes[name].requests
    assert len(requests) == TURNS
    assert all(r.arrived_s <= r.admitted_s <= r.first_token_s <= r.finished_s for r in requests)


@each_policy
def test_a_replay_repeats_itself_and_no_running_chain_is_evicted(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    replay = prepared(name, SESSIONS)
    _watch_evictions(replay)
    again = replay.run()
    assert replace(again, scheduler_cpu_s=0) == replace(outcomes[name], scheduler_cpu_s=0)


@each_policy
def test_every_new_token_is_computed_and_every_prompt_token_is_hit_or_computed(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    mine, stock = outcomes[name], outcomes["vllm"]
    useful = sum(r.useful_tokens for r in mine.requests)
    assert useful == sum(r.useful_tokens for r in stock.requests)
    missed = sum(r.prompt_tokens - r.hit_tokens for r in mine.requests)
    answers = sum(t.output_tokens - 1 for s in SESSIONS for t in s.turns)
    preempted = any(r.preemptions for r in mine.requests)
    assert mine.computed_tokens == missed + answers or preempted
    assert mine.computed_tokens >= missed + answers


@each_policy
def test_with_a_pool_that_holds_everything_all_policies_tie(
    name: str, stock_without_pressure: Outcome
) -> None:
    mine = outcome(name, SESSIONS, ROOMY_BLOCKS)
    assert mine.evicted_blocks == 0
    assert _session_time_s(mine) == pytest.approx(_session_time_s(stock_without_pressure), rel=0.01)


@each_policy
def test_on_a_fixed_order_belady_misses_least(name: str, fixed_order: dict[str, Outcome]) -> None:
    arrivals = [_order(fixed_order[n]) for n in (name, "vllm")]
    assert arrivals[0] == arrivals[1]
    bound = BLOCK * least_misses(_uses(fixed_order["vllm"]), POOL_BLOCKS - 1)
    assert bound <= fixed_order["belady"].computed_tokens <= fixed_order[name].computed_tokens


def test_the_small_pool_makes_the_policies_differ(outcomes: dict[str, Outcome]) -> None:
    assert len({outcome.computed_tokens for outcome in outcomes.values()}) > len(POLICIES) // 2
    assert min(outcome.evicted_blocks for outcome in outcomes.values()) > POOL_BLOCKS


def _watch_evictions(replay: Replay) -> None:
    """Makes the replay fail when a block goes that a running request holds."""
    scheduler = replay.engine.scheduler
    manager = scheduler.kv_cache_manager
    evict = manager.block_pool._maybe_evict_cached_block

    def checked_evict(block: Any) -> bool:
        if block.block_hash is not None:
            for request in scheduler.running:
                held = manager.get_blocks(request.request_id).blocks[0]
                assert all(block is not other for other in held)
        return bool(evict(block))

    manager.block_pool._maybe_evict_cached_block = checked_evict


def _session_time_s(outcome: Outcome) -> float:
    return sum(r.latency_s for r in outcome.requests)


def _order(outcome: Outcome) -> list[tuple[int, int]]:
    return [(r.session, r.turn) for r in outcome.requests]


def _uses(outcome: Outcome) -> list[tuple[object, int]]:
    """The full blocks that the requests used, in order, as (whose text, index)."""
    uses: list[tuple[object, int]] = []
    for session, turn in _order(outcome):
        turns = FIXED[session].turns
        shared = min(12_000, turns[0].prompt_tokens) // BLOCK
        # The last token of an answer is never computed.
        full = (turns[turn].prompt_tokens + turns[turn].output_tokens - 1) // BLOCK
        uses += [("system" if i < shared else session, i) for i in range(full)]
    return uses
