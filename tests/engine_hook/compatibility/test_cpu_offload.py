"""vLLM's CPU offloading: blocks are held while they are copied, and come back late.

Lazily it walks the free queue and copies what will be evicted next; so the walk must go in the
order of eviction, whatever has changed since its last one.
"""

from __future__ import annotations

from typing import Any

import pytest

from ..vllm_scheduler import BLOCK
from .connectors import HostCopies, cpu_offload
from .scenario import agents, assert_same, assert_sound, both, foresee, ours, play
from .test_hybrid import LAYOUTS

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
both_modes = pytest.mark.parametrize("is_lazy", [False, True], ids=["eager", "lazy"])
layouts = pytest.mark.parametrize("layout", [{}, LAYOUTS["window first"]], ids=["full", "hybrid"])
seeds = pytest.mark.parametrize("seed", range(3))
POOL = 90


@both_bases
@both_modes
@layouts
@seeds
def test_without_sessions_nothing_differs_from_stock(
    asynchronous: bool, is_lazy: bool, layout: dict[str, Any], seed: int
) -> None:
    turns, played = agents(seed, sessions=6), []
    for scheduler in both(
        asynchronous, policy="priority", **cpu_offload(POOL, is_lazy=is_lazy), **layout
    ):
        copies = HostCopies(BLOCK)
        played.append(play(scheduler, turns, transfers=copies, with_sessions=False))
        assert copies.stored_blocks
    assert_same(*played)


@both_bases
@both_modes
@layouts
@seeds
def test_sessions_are_answered_in_full(
    asynchronous: bool, is_lazy: bool, layout: dict[str, Any], seed: int
) -> None:
    turns, copies = agents(seed, sessions=6), HostCopies(BLOCK)
    scheduler = ours(asynchronous, **cpu_offload(POOL, is_lazy=is_lazy), **layout)
    played = play(scheduler, turns, foresee(seed, sessions=6), copies)
    assert copies.stored_blocks
    assert_sound(played, turns)
