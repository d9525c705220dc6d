"""Each session's tail goes before its head, in whatever order its blocks came back."""

from __future__ import annotations

from typing import Any

import pytest
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id, resolve_block_hashes
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ..vllm_scheduler import BLOCK, make_request
from .connectors import HostCopies, RemoteLink, cpu_offload, remote_store
from .scenario import Played, Turn, agents, foresee, ours, play
from .test_hybrid import LAYOUTS

SETUPS: dict[str, tuple[dict[str, Any], Any]] = {
    "no connector": ({}, None),
    "kept for a remote store": (remote_store(), RemoteLink),
    "copied to the host": (cpu_offload(200, is_lazy=False), HostCopies),
    "copied when next to go": (cpu_offload(200, is_lazy=True), HostCopies),
}
setups = pytest.mark.parametrize(("options", "link"), SETUPS.values(), ids=list(SETUPS))
both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@setups
@both_bases
@pytest.mark.parametrize("seed", range(3))
def test_case_3_of_the_public_faults_frees_that_come_back_late_and_together(
    asynchronous: bool, options: dict[str, Any], link: Any, seed: int
) -> None:
    """A connector keeps blocks while it copies them, under async scheduling: they return late.

    Seen: the order within a session was lost, and a chain lost its head before its tail.
    """
    check(asynchronous, {"num_blocks": 200} | options, link, seed)


@both_bases
@pytest.mark.parametrize("is_lazy", [False, True], ids=["eager", "lazy"])
def test_case_3_of_the_public_faults_with_several_kv_cache_groups(
    asynchronous: bool, is_lazy: bool
) -> None:
    options = cpu_offload(200, is_lazy=is_lazy) | LAYOUTS["full first"]
    check(asynchronous, options, HostCopies, seed=7)


def check(asynchronous: bool, options: dict[str, Any], link: Any, seed: int) -> None:
    turns = agents(seed)
    scheduler = ours(asynchronous, **options)
    played = play(scheduler, turns, foresee(seed), link() if link else None)
    for turn in turns:
        update = ForecastUpdate(
            hash_session(turn.session, ""), scheduler.clock(), Forecast((0.0,), (9.0,))
        )
        scheduler._hook.take_forecast(update)
    scheduler._hook.begin_step(scheduler.clock(), [])
    longest = {turn.session: turn for turn in turns}
    assert sum(is_tail_first(played, turn) for turn in longest.values()) > 0


def is_tail_first(played: Played, turn: Turn) -> bool:
    """Whether the session has blocks to compare; fails where their order is wrong.

    In groups of full attention: of a sliding window vLLM gives up the head first, and rightly so.
    """
    pool, manager = played.pool, played.scheduler.kv_cache_manager
    order = [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]
    request = make_request("last", turn.prompt + turn.expected())
    compared = 0
    for group, spec in enumerate(manager.kv_cache_config.kv_cache_groups):
        if not isinstance(spec.kv_cache_spec, FullAttentionSpec):
            continue
        size = spec.kv_cache_spec.block_size
        places = []
        for block_hash in resolve_block_hashes(request.block_hashes, BLOCK, size):
            key = make_block_hash_with_group_id(block_hash, group)
            if block := pool.cached_block_hash_to_block.get_one_block(key):
                places.append(order.index(block.block_id))
        assert places == sorted(places, reverse=True), f"group {group} of {turn.name}"
        compared += len(places) > 1
    return compared > 0
