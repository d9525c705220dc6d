"""Streaming-input sessions: a request that gets more prompt after it has answered."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ..vllm_scheduler import make_request
from .scenario import Action, agents, assert_same, assert_sound, both, foresee, ours, play, together
from .worker import answer

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
seeds = pytest.mark.parametrize("seed", range(3))
POOL = 60


def stream(name: str, seed: int, session: str | None) -> tuple[dict[int, Action], list[int]]:
    """Chunks that arrive before and after the last one is answered; what comes out in all.

    vLLM drops the last token of each answer when the next chunk arrives: it was never computed.
    """
    rng = random.Random(seed)
    chunks = [[rng.randrange(250) for _ in range(rng.randint(3, 60))] for _ in range(5)]
    lengths = [rng.randint(1, 12) for _ in chunks]
    context: list[int] = []
    out: list[int] = []
    actions, step = {}, rng.randint(0, 9)
    for chunk, length in zip(chunks, lengths, strict=True):
        actions[step] = send(name, chunk, length, session)
        step += rng.choice([1, 2, 40])
        said = answer(context + chunk, length)
        out += said
        context += chunk + said[:-1]
    actions[step] = send(name, [], 1, session, resumable=False)
    return actions, out


def send(
    name: str, chunk: list[int], length: int, session: str | None, resumable: bool = True
) -> Action:
    def action(scheduler: Any) -> None:
        scheduler.add_request(
            make_request(
                name,
                list(chunk) or [0],
                length,
                session,
                resumable=resumable,
                arrival_time=1.0,
                priority=-10_000,
            )
        )

    return action


@both_bases
@seeds
def test_a_stream_among_agents_is_served_as_stock_serves_it(asynchronous: bool, seed: int) -> None:
    turns, played = agents(seed), []
    for scheduler in both(asynchronous, num_blocks=POOL, policy="priority"):
        chunks, out = stream("stream", seed, None)
        played.append(play(scheduler, turns, chunks, with_sessions=False))
        assert played[-1].answers["stream"] == out
    assert_same(*played)


@both_bases
@seeds
def test_a_stream_with_a_session_is_one_request_of_it(asynchronous: bool, seed: int) -> None:
    turns, (chunks, out) = agents(seed), stream("stream", seed, "streaming")
    scheduler = ours(asynchronous, num_blocks=POOL)
    played = play(scheduler, turns, together(chunks, foresee(seed)))
    assert played.answers["stream"] == out
    assert_sound(played, turns)
    assert scheduler._hook.counts.requests >= len(turns) + 1
