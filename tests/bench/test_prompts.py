"""Shared prefixes: block names against the texts that they stand for, and the hits that follow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.policies.training import Training
from cachewise_bench.prompts import Prompts
from cachewise_bench.replay import Outcome, Replay
from cachewise_bench.synthetic import synthetic_sessions
from cachewise_bench.virtual_engine import block_hasher
from cachewise_bench.workload import Session, Turn, choose_sessions, with_subagents

from .policies.small import BLOCK, CHUNK, hardware
from .sample_turns import session, turn

LARGE_POOL_BLOCKS = 40_000
SMALL_POOL_BLOCKS = 800


def replayed(
    sessions: list[Session], blocks: int = LARGE_POOL_BLOCKS, policy: str = "vllm"
) -> Outcome:
    made = POLICIES[policy](Training(()))
    return Replay(sessions, made, hardware(blocks), CHUNK).run()


def small_synthetic(count: int) -> list[Session]:
    """The beginnings of synthetic sessions, of a tenth of the size; some compact their context,
    others start subagents."""
    drawn = choose_sessions(synthetic_sessions(200, seed=0), 200, 25, 100_000, seed=0)
    chosen = [s for s in drawn if any(made.compacted for made in s.turns)][: count // 2]
    forking = (s for s in drawn if any(made.subagents for made in s.turns[:-1]))
    chosen += [s for s in forking if s not in chosen][: count - len(chosen)]
    return [_shrunk(s) for s in chosen]


def _shrunk(whole: Session) -> Session:
    turns = tuple(
        replace(
            made,
            prompt_tokens=made.prompt_tokens // 10,
            output_tokens=made.output_tokens // 10,
            subagents=tuple(map(_shrunk, made.subagents)),
        )
        for made in whole.turns
    )
    return replace(whole, turns=turns, system_tokens=whole.system_tokens // 10)


def texts(prompts: Prompts) -> dict[tuple[int, int], list[object]]:
    """Every context, by session and turn, token by token: each token is the place where its text
    was first written."""
    made: dict[tuple[int, int], list[object]] = {}
    for index, (chain, fork) in enumerate(zip(prompts.sessions, prompts.forks, strict=True)):
        system = [(chain.harness, i) for i in range(chain.system_tokens)]
        text: list[object] = list(made[fork.parent, fork.turn]) if fork else list(system)
        for number, step in enumerate(chain.turns):
            text = list(system) if step.compacted else text
            text = text + [(index, number, i) for i in range(step.context_tokens - len(text))]
            made[index, number] = text
    return made


def names(prompts: Prompts, index: int, turn: int) -> list[bytes]:
    made = prompts.sessions[index].turns[turn]
    request = SimpleNamespace(block_hashes=[], num_tokens=made.context_tokens)
    return block_hasher(prompts.prompt(index, turn), BLOCK)(request)


def test_blocks_have_equal_names_exactly_where_everything_up_to_their_end_is_equal() -> None:
    sessions = small_synthetic(4)
    prompts = Prompts(sessions)
    name_of: dict[int, bytes] = {}
    text_of: dict[bytes, int] = {}
    for place, text in texts(prompts).items():
        prefix = 0
        for i, name in enumerate(names(prompts, *place)):
            prefix = hash((prefix, tuple(text[i * BLOCK : (i + 1) * BLOCK])))
            assert name_of.setdefault(prefix, name) == name
            assert text_of.setdefault(name, prefix) == prefix


def test_with_room_for_all_each_request_hits_what_was_there_before() -> None:
    sessions = small_synthetic(4)
    prompts, outcome = Prompts(sessions), replayed(sessions)
    assert outcome.evicted_blocks == 0
    assert len(outcome.requests) == sum(len(s.turns) for s in prompts.sessions)
    for request in outcome.requests:
        known = prompts.known_tokens(request.session, request.turn)
        if request.turn or prompts.forks[request.session]:
            # The last token of an answer is never computed.
            assert request.hit_tokens in ((known - 1) // BLOCK * BLOCK, known // BLOCK * BLOCK)


@pytest.mark.parametrize(("harness", "hit"), [("claude-code", 1_200), ("codex", 0)])
def test_a_new_session_hits_the_system_prompt_of_its_own_harness(harness: str, hit: int) -> None:
    first = Session("a", (turn(2_000), turn(2_200)), "claude-code", 1_200)
    second = Session("b", (turn(1_900),), harness, 1_200)
    late = replace(first, turns=(replace(first.turns[0], wait_s=0.0), first.turns[1]))
    outcome = replayed([late, second])
    assert [r.hit_tokens for r in outcome.requests if r.session == 1] == [hit]


def test_a_turn_waits_for_its_subagents_and_they_start_at_its_end() -> None:
    quick, slow = session("quick", 1_500), session("slow", 1_500, 1_700, 1_900)
    first = replace(turn(1_000, wait_s=3.0), subagents=(quick, slow))
    outcome = replayed([Session("s", (first, turn(2_000)))])
    ended: dict[int, float] = defaultdict(float)
    started: dict[int, float] = {}
    for request in outcome.requests:
        ended[request.session] = max(ended[request.session], request.finished_s)
        started.setdefault(request.session, request.arrived_s)
    parent = [request for request in outcome.requests if request.session == 0]
    assert started[1] == started[2] == parent[0].finished_s
    assert parent[1].arrived_s == max(ended[1], ended[2], parent[0].finished_s + 3.0)
    assert outcome.session_walls_s[2] == pytest.approx(ended[2] - started[2])


@pytest.mark.parametrize("policy", ["vllm", "cachewise-oracle", "continuum", "thunder", "ours"])
def test_sessions_with_subagents_end_under_pressure_too(policy: str) -> None:
    sessions = small_synthetic(5)
    outcome = replayed(sessions, SMALL_POOL_BLOCKS, policy)
    turns = [t for s in with_subagents(sessions)[0] for t in s.turns]
    assert len(outcome.requests) == len(turns)
    assert sum(r.prompt_tokens for r in outcome.requests) == sum(t.prompt_tokens for t in turns)
    assert outcome.evicted_blocks > 0


def test_useful_tokens_are_what_is_new() -> None:
    forked = session("a", 1_300, 1_500)
    turns: tuple[Turn, ...] = (
        replace(turn(1_000), subagents=(forked,)),
        turn(1_200),
        replace(turn(900), compacted=True),
    )
    outcome = replayed([Session("s", turns, "codex", 400)])
    useful = {(r.session, r.turn): r.useful_tokens for r in outcome.requests}
    assert useful == {(0, 0): 1_100, (0, 1): 200, (0, 2): 600, (1, 0): 300, (1, 1): 200}
