"""Preemption, aborts and reset_prefix_cache, over both of vLLM's scheduler classes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from .scenario import (
    Action,
    Turn,
    agents,
    assert_same,
    assert_sound,
    both,
    foresee,
    ours,
    play,
    together,
)

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
seeds = pytest.mark.parametrize("seed", range(4))
SMALL_POOL = 40
"""Blocks. The sessions of `agents` need about 150 together, and one of them up to 38."""


def aborts(turns: list[Turn], seed: int) -> tuple[set[str], dict[int, Action]]:
    """Clients that go away some steps after they asked."""
    rng = random.Random(seed)
    gone = {turn.name: turn.step + rng.randint(0, 12) for turn in rng.sample(turns, 6)}

    def leave(name: str) -> Action:
        return lambda scheduler: scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    return set(gone), together(*({step: leave(name)} for name, step in gone.items()))


def reset(scheduler: Any) -> None:
    assert scheduler.reset_prefix_cache(reset_running_requests=True)


@both_bases
@seeds
def test_without_sessions_not_a_step_and_not_a_block_differs_from_stock(
    asynchronous: bool, seed: int
) -> None:
    turns = agents(seed)
    _, leaving = aborts(turns, seed)
    actions = together(leaving, {60: reset, 61: reset, 130: reset})
    stock, mine = (
        play(scheduler, turns, actions, with_sessions=False)
        for scheduler in both(asynchronous, num_blocks=SMALL_POOL, policy="priority")
    )
    assert stock.preemptions > 3
    assert_same(stock, mine)


@both_bases
@seeds
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_whoever_only_observes_changes_nothing(asynchronous: bool, seed: int, policy: str) -> None:
    turns = agents(seed)
    _, leaving = aborts(turns, seed)
    observe: dict[str, Any] = {"settings": {"mode": "observe"}}
    stock, watched = both(asynchronous, num_blocks=SMALL_POOL, policy=policy, **observe)
    assert_same(
        play(stock, turns, together(leaving, {100: reset})),
        play(watched, turns, together(leaving, {100: reset}, foresee(seed))),
    )


@both_bases
@seeds
def test_sessions_are_answered_in_full_under_preemption(asynchronous: bool, seed: int) -> None:
    turns = agents(seed)
    played = play(ours(asynchronous, num_blocks=SMALL_POOL), turns, foresee(seed))
    assert_sound(played, turns)


@both_bases
@seeds
def test_whoever_leaves_takes_nothing_along(asynchronous: bool, seed: int) -> None:
    turns = agents(seed)
    gone, leaving = aborts(turns, seed)
    played = play(
        ours(asynchronous, num_blocks=SMALL_POOL), turns, together(leaving, foresee(seed))
    )
    assert_sound(played, turns, gone)


@both_bases
@seeds
def test_a_reset_of_the_prefix_cache_costs_nothing_but_time(asynchronous: bool, seed: int) -> None:
    turns = agents(seed)
    resets = {step: reset for step in range(20, 200, 20)}
    played = play(ours(asynchronous, num_blocks=SMALL_POOL), turns, together(resets, foresee(seed)))
    assert played.preemptions
    assert_sound(played, turns)
