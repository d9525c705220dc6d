"""The CPU offload tier: the link by itself, and vLLM's own offloading on the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from cachewise_bench.offload import HostLink
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.replay import Outcome, Replay
from hypothesis import given
from hypothesis import strategies as st

from .policies.small import CHUNK, POOL_BLOCKS, TRAINING, hardware, outcome, small_sessions

BLOCKS_PER_S = 100
CARD = replace(
    hardware(), block_size=16, kv_bytes_per_token=62_500_000 // BLOCKS_PER_S, pcie_gb_per_s=1.0
)
SESSIONS = small_sessions()
NEW_TOKENS = sum(turn.output_tokens for s in SESSIONS for turn in s.turns)
EVERYTHING_GIB = 10.0


def _work(
    loads: Mapping[int, int] | None = None,
    stores: Mapping[int, int] | None = None,
    flush: set[int] | None = None,
) -> Any:
    """What vLLM asks of a worker in a step: blocks by job."""

    def job(number: int, blocks: int) -> Any:
        ids = SimpleNamespace(block_ids=[0] * blocks)
        return SimpleNamespace(req_id=f"r{number}", src_spec=ids, dst_spec=ids)

    return SimpleNamespace(
        load_jobs={n: job(n, blocks) for n, blocks in (loads or {}).items()},
        store_jobs={n: job(n, blocks) for n, blocks in (stores or {}).items()},
        jobs_to_flush=flush,
    )


def _ended(link: HostLink, now: float) -> set[int]:
    return set(link.end_step(now).kv_connector_worker_meta.completed_jobs)


def test_loads_begin_at_once_and_follow_one_another() -> None:
    link = HostLink(CARD)
    assert link.begin_step(_work(loads={1: 100, 2: 50}), now=10.0) == 10.0
    assert link.next_end == pytest.approx(11.0)
    assert _ended(link, 10.9) == set()
    output = link.end_step(11.1)
    assert output.finished_recving == {"r1"}
    assert set(output.kv_connector_worker_meta.completed_jobs) == {1}
    assert (_ended(link, 11.4), _ended(link, 11.6)) == (set(), {2})
    assert (link.loaded_blocks, link.next_end) == (150, math.inf)


def test_stores_begin_with_the_next_step_and_do_not_slow_down_loads() -> None:
    link = HostLink(CARD)
    link.begin_step(_work(stores={1: 100}), now=0.0)
    assert link.next_end == 0.0
    link.begin_step(_work(loads={2: 100}), now=5.0)
    assert link.next_end == pytest.approx(6.0)
    output = link.end_step(6.1)
    assert set(output.kv_connector_worker_meta.completed_jobs) == {1, 2}
    assert output.finished_recving == {"r2"}


def test_a_step_waits_for_the_stores_whose_blocks_it_takes() -> None:
    link = HostLink(CARD)
    link.begin_step(_work(stores={1: 100, 2: 100}), now=0.0)
    assert link.begin_step(_work(stores={3: 300}, flush={1}), now=5.0) == pytest.approx(6.0)
    assert link.begin_step(_work(stores={4: 100}, flush={4}), now=6.0) == pytest.approx(11.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20))
def test_no_copy_is_lost_and_none_is_faster_than_the_link(steps: list[tuple[int, int]]) -> None:
    link, now, ended = HostLink(CARD), 0.0, set[int]()
    for i, (load, store) in enumerate(steps):
        now = link.begin_step(_work({2 * i: load}, {2 * i + 1: store}), now) + 0.01
        ended |= _ended(link, now)
    while link.next_end < math.inf:
        now = link.begin_step(_work(), max(now, link.next_end))
        ended |= _ended(link, now)
    assert ended == set(range(2 * len(steps)))
    least_s = max(sum(blocks) for blocks in zip(*steps, strict=True)) / BLOCKS_PER_S
    assert now >= least_s * (1 - 1e-9)


def _outcome(name: str, gib: float) -> Outcome:
    policy = POLICIES[name](TRAINING)
    return Replay(SESSIONS, policy, hardware(), CHUNK, gib).run()


@pytest.mark.parametrize("name", POLICIES)
def test_with_room_for_everything_no_full_block_is_computed_twice(name: str) -> None:
    mine = _outcome(name, EVERYTHING_GIB)
    assert len(mine.requests) == sum(len(s.turns) for s in SESSIONS)
    assert mine.loaded_blocks > 0
    missed = sum(r.prompt_tokens - r.hit_tokens for r in mine.requests)
    answers = NEW_TOKENS - len(mine.requests)
    assert mine.computed_tokens == missed + answers or any(r.preemptions for r in mine.requests)
    useful = sum(r.useful_tokens for r in mine.requests)
    # The end of a session's context that fills no block, and a store that is still under way.
    assert mine.computed_tokens < 1.1 * useful


def test_more_host_memory_means_less_to_compute() -> None:
    none, some, much = (_outcome("vllm", gib) for gib in (0.0, 2.0, EVERYTHING_GIB))
    assert none.computed_tokens > some.computed_tokens > much.computed_tokens
    assert none == replace(outcome("vllm", SESSIONS), scheduler_cpu_s=none.scheduler_cpu_s)
    assert none.loaded_blocks == 0


def test_a_pool_that_holds_everything_loads_nothing() -> None:
    policy = POLICIES["vllm"](TRAINING)
    roomy = Replay(SESSIONS, policy, hardware(6 * POOL_BLOCKS), CHUNK, EVERYTHING_GIB).run()
    assert roomy.loaded_blocks == 0


def test_swapping_in_is_faster_than_computing_and_slower_than_a_larger_pool() -> None:
    def latency_s(mine: Outcome) -> float:
        return sum(r.latency_s for r in mine.requests)

    roomy = outcome("vllm", SESSIONS, 6 * POOL_BLOCKS)
    swapped, computed = _outcome("vllm", EVERYTHING_GIB), _outcome("vllm", 0.0)
    assert latency_s(roomy) < latency_s(swapped) < latency_s(computed)
