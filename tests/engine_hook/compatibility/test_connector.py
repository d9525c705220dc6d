"""A KV connector that keeps the blocks of finished requests, and loads blocks in the background.

Under async scheduling vLLM defers frees then: the blocks of several requests come back together.
"""

from __future__ import annotations

import pytest

from .connectors import RemoteLink, remote_store
from .scenario import agents, assert_same, assert_sound, both, foresee, ours, play, together
from .test_preemption import aborts

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
seeds = pytest.mark.parametrize("seed", range(4))
POOL = 42


@both_bases
@seeds
def test_without_sessions_nothing_differs_from_stock(asynchronous: bool, seed: int) -> None:
    turns = agents(seed)
    _, leaving = aborts(turns, seed)
    links, played = [RemoteLink(), RemoteLink()], []
    schedulers = both(asynchronous, num_blocks=POOL, policy="priority", **remote_store())
    for scheduler, link in zip(schedulers, links, strict=True):
        assert scheduler.defer_block_free is asynchronous
        played.append(play(scheduler, turns, leaving, link, with_sessions=False))
    assert links[0].loaded_blocks == links[1].loaded_blocks
    assert_same(*played)


@both_bases
@seeds
def test_sessions_are_answered_in_full(asynchronous: bool, seed: int) -> None:
    turns, link = agents(seed), RemoteLink()
    gone, leaving = aborts(turns, seed)
    scheduler = ours(asynchronous, num_blocks=POOL, **remote_store())
    played = play(scheduler, turns, together(leaving, foresee(seed)), link)
    assert link.loaded_blocks
    assert_sound(played, turns, gone)
