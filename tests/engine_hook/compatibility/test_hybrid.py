"""Models with sliding-window layers: several KV cache groups over one pool.

vLLM frees the blocks that leave the window while the request runs, and keeps few of them cached.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from cachewise_bench.bare_scheduler import full_attention
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

from ..vllm_scheduler import BLOCK, make_request, run
from .scenario import agents, assert_same, assert_sound, both, foresee, ours, play

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
seeds = pytest.mark.parametrize("seed", range(3))


def sliding_window(block_size: int, window: int = 40) -> KVCacheGroupSpec:
    spec = SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        sliding_window=window,
    )
    return KVCacheGroupSpec(["window"], spec)


LAYOUTS: dict[str, dict[str, Any]] = {
    "full first": {"groups": [full_attention(BLOCK), sliding_window(BLOCK)]},
    "window first": {"groups": [sliding_window(BLOCK), full_attention(BLOCK)]},
    "larger blocks": {
        "groups": [sliding_window(BLOCK), full_attention(2 * BLOCK)],
        "block_size": 2 * BLOCK,
        "hash_block_size": BLOCK,
    },
    "window only": {"groups": [sliding_window(BLOCK)]},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


@both_bases
@layouts
@seeds
def test_without_sessions_nothing_differs_from_stock(
    asynchronous: bool, layout: dict[str, Any], seed: int
) -> None:
    turns = agents(seed)
    stock, mine = (
        play(scheduler, turns, with_sessions=False)
        for scheduler in both(asynchronous, num_blocks=70, policy="priority", **layout)
    )
    assert_same(stock, mine)


@both_bases
@layouts
@seeds
def test_sessions_are_answered_in_full(
    asynchronous: bool, layout: dict[str, Any], seed: int
) -> None:
    turns = agents(seed)
    played = play(ours(asynchronous, num_blocks=70, **layout), turns, foresee(seed))
    assert_sound(played, turns)


@layouts
@seeds
def test_the_resident_prefix_is_the_one_that_vllm_finds(layout: dict[str, Any], seed: int) -> None:
    """a_i, the blocks that are missing, is right in whatever group vLLM keeps the prefix."""
    rng = random.Random(seed)
    scheduler, size = ours(num_blocks=90, **layout), layout.get("block_size", BLOCK)
    contexts = {name: [rng.randrange(250) for _ in range(200)] for name in "abcd"}
    for number in range(12):
        name = rng.choice("abcd")
        asked = make_request(f"ask{number}", contexts[name], session=name)
        _, hit_tokens, *_ = scheduler.kv_cache_manager.get_computed_blocks(asked)
        missing = scheduler._missing_blocks(asked)
        assert missing == -(-(len(contexts[name]) - hit_tokens) // size), f"hit {hit_tokens}"
        scheduler.add_request(make_request(f"r{number}", contexts[name], session=name))
        run(scheduler)
        contexts[name] += [rng.randrange(250) for _ in range(rng.randint(1, 60))]


def test_two_groups_that_keep_everything_need_two_blocks_for_as_many_tokens() -> None:
    two = [full_attention(BLOCK), full_attention(BLOCK), sliding_window(BLOCK)]
    scheduler = ours(num_blocks=90, groups=two)
    assert scheduler._missing_blocks(make_request("r", [1] * 160)) == 20
