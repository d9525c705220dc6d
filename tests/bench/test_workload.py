from __future__ import annotations

from dataclasses import replace

import pytest
from cachewise_bench.workload import (
    Fork,
    Session,
    Turn,
    WorkloadError,
    chains,
    choose_sessions,
    with_subagents,
)

from tests.bench.sample_turns import session, turn


def prompts(turns: tuple[Turn, ...]) -> list[int]:
    return [turn.prompt_tokens for turn in turns]


def test_a_session_is_cut_where_its_context_shrinks() -> None:
    found = chains(session("s", 1000, 2000, 1500, 1800), context_cap=9999)
    assert [(c.name, prompts(c.turns)) for c in found] == [
        ("s", [1000, 2000]),
        ("s#1", [1500, 1800]),
    ]


def test_a_prompt_that_is_shorter_by_a_few_tokens_is_not_a_cut() -> None:
    (chain,) = chains(session("s", 1000, 990, 1200), context_cap=9999)
    assert prompts(chain.turns) == [1000, 1000, 1200]


def test_a_chain_ends_where_it_passes_the_context_cap() -> None:
    (chain,) = chains(session("s", 1000, 2000, 3000, 4000), context_cap=2500)
    assert prompts(chain.turns) == [1000, 2000]


def test_the_same_seed_draws_the_same_sessions_and_another_seed_others() -> None:
    many = [session(f"s{i}", *range(1000, 3000, 100)) for i in range(30)]

    def draw(seed: int) -> list[str]:
        return [s.name for s in choose_sessions(many, 5, 10, 9999, seed)]

    assert draw(1) == draw(1) != draw(2)


def test_turns_are_capped() -> None:
    (drawn,) = choose_sessions([session("s", *range(100, 2100, 100))], 1, 7, 9999, 0)
    assert len(drawn.turns) == 7


def test_too_few_sessions_are_drawn_again_under_other_names() -> None:
    drawn = choose_sessions([session("s", 1, 2, 3)], 3, 3, 9999, 0)
    assert [s.name for s in drawn] == ["s", "s~1", "s~2"]


def test_short_chains_are_left_out_only_where_there_are_longer_ones() -> None:
    short, long = session("short", 1, 2), session("long", *range(1, 20))
    assert {s.name for s in choose_sessions([short, long], 4, 14, 9999, 0)} == {
        "long", "long~1", "long~2", "long~3",
    }  # fmt: skip
    assert [s.name for s in choose_sessions([short], 1, 14, 9999, 0)] == ["short"]


def test_no_turn_within_the_cap_is_an_error_that_names_the_option() -> None:
    with pytest.raises(WorkloadError, match="--context-cap"):
        choose_sessions([session("s", 5000)], 1, 1, 4000, 0)


def test_a_compacted_turn_is_no_cut() -> None:
    turns = session("s", 1000, 2000, 1500, 1800).turns
    turns = (*turns[:2], replace(turns[2], compacted=True), turns[3])
    (chain,) = chains(Session("s", turns, "codex", 700), context_cap=9999)
    assert chain == Session("s", turns, "codex", 700)


def with_agent(turn: Turn, *subagents: Session) -> Turn:
    return replace(turn, subagents=subagents)


def test_subagents_follow_the_given_sessions_and_say_where_they_fork() -> None:
    first, second, last = session("s", 1000, 2000, 3000).turns
    inner = with_agent(turn(2600), session("c", 2900))
    child = Session("b", (inner, turn(2800)))
    parent = Session("s", (first, with_agent(second, session("a", 2300), child), last))
    every, forks = with_subagents([session("r", 10), parent])
    assert [s.name for s in every] == ["r", "s", "s/1/a", "s/1/b", "s/1/b/0/c"]
    assert forks == [None, None, Fork(1, 1), Fork(1, 1), Fork(3, 0)]


def test_subagents_of_a_sessions_last_turn_do_not_start() -> None:
    only = Session("s", (with_agent(turn(1000), session("a", 1200)),))
    assert with_subagents([only]) == ([only], [None])


def test_subagents_end_where_they_pass_the_context_cap() -> None:
    started = with_agent(turn(1000), session("a", 1200, 1400, 1600), session("b", 1700))
    ((kept, _),) = [chain.turns for chain in chains(Session("s", (started, turn(1300))), 1500)]
    assert [prompts(subagent.turns) for subagent in kept.subagents] == [[1200, 1400]]
