from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cachewise_bench.published import Quantiles
from cachewise_bench.synthetic import HARNESSES, synthetic_sessions
from cachewise_bench.workload import Session, ToolCall, Turn, with_subagents


@cache
def sessions() -> list[Session]:
    return synthetic_sessions(3_000, seed=0)


@cache
def turns() -> list[Turn]:
    return [turn for session in sessions() for turn in session.turns]


def calls(*tools: str) -> list[ToolCall]:
    """All calls, or those of some tools."""
    every = (call for turn in turns() for call in turn.tool_calls)
    return [call for call in every if not tools or call.name in tools]


def growth_per_tool_turn() -> list[int]:
    return [
        after.prompt_tokens - before.prompt_tokens
        for session in sessions()
        for before, after in zip(session.turns, session.turns[1:], strict=False)
        if before.tool_calls and not after.compacted
    ]


@cache
def published() -> dict[str, tuple[list[float], dict[int, float]]]:
    """Values by name, and their published quantiles by percent."""
    inputs = [s.turns[0].prompt_tokens for s in sessions()]
    last = [s.turns[-1].prompt_tokens for s in sessions()]
    pauses = [t.wait_s for t in turns() if not t.tool_calls]
    return {
        "turns per session": ([len(s.turns) for s in sessions()], {50: 44, 90: 149, 99: 342}),
        "first input": (inputs, {50: 24_000}),
        "last input": (last, {50: 134_000}),
        "input": ([t.prompt_tokens for t in turns()], {50: 101_000, 90: 211_000, 99: 508_000}),
        "output": ([t.output_tokens for t in turns()], {50: 217, 90: 894, 99: 3_680}),
        "growth": (growth_per_tool_turn(), {50: 685, 90: 3_796, 99: 17_051}),
        "tool calls": ([c.duration_s for c in calls()], {50: 0.3, 90: 13.6, 99: 216}),
        "Bash": ([c.duration_s for c in calls("Bash")], {50: 0.409, 99: 235}),
        "Read": ([c.duration_s for c in calls("Read")], {50: 0.036}),
        "Edit": ([c.duration_s for c in calls("Edit")], {50: 0.095}),
        "subagents": ([c.duration_s for c in calls("Agent")], {99: 600}),
        # The P99 of 13.9 h is beyond the clip of waits.
        "human pauses": (pauses, {50: 86, 90: 1_236}),
    }


def test_quantiles_are_the_published_ones() -> None:
    for name, (values, quantiles) in published().items():
        found = np.percentile(values, list(quantiles))
        assert found == pytest.approx(list(quantiles.values()), rel=0.15), name


def test_means_and_shares_are_the_published_ones() -> None:
    times = np.array([call.duration_s for call in calls()])
    assert times.mean() == pytest.approx(16.8, rel=0.15)
    assert np.histogram(times, (0, 1, 10, 60, np.inf))[0] / len(times) == pytest.approx(
        [0.61, 0.27, 0.08, 0.04], rel=0.15
    )
    assert np.mean([c.duration_s for c in calls("Agent")]) == pytest.approx(63, rel=0.15)
    assert np.mean([c.duration_s for c in calls("WebFetch")]) == pytest.approx(24, rel=0.15)
    for tool, share in (("Bash", 0.47), ("Read", 0.22), ("Edit", 0.13)):
        assert len(calls(tool)) / len(times) == pytest.approx(share, rel=0.15)
    per_turn = [len(turn.tool_calls) for turn in turns() if turn.tool_calls]
    assert np.mean(per_turn) == pytest.approx(1.2, rel=0.15)
    assert np.percentile(per_turn, 90) == 2
    pauses = np.array([turn.wait_s for turn in turns() if not turn.tool_calls])
    assert 0.7 <= np.mean(pauses < 300) <= 0.8
    assert (len(turns()) - len(pauses)) / len(pauses) == pytest.approx(13, rel=0.15)


def test_compaction_and_subagents_are_as_frequent_as_published() -> None:
    compacted = [any(turn.compacted for turn in session.turns) for session in sessions()]
    assert 0.045 <= np.mean(compacted) <= 0.18
    started = [sum(len(turn.subagents) for turn in session.turns) for session in sessions()]
    assert np.mean([count > 0 for count in started]) == pytest.approx(0.44, rel=0.15)
    assert np.median([count for count in started if count]) == 4


def test_the_same_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert synthetic_sessions(3, 5) == synthetic_sessions(3, 5) != synthetic_sessions(3, 6)


def test_a_session_does_not_depend_on_how_many_are_drawn() -> None:
    assert synthetic_sessions(5, 0)[:2] == synthetic_sessions(2, 0)


def test_a_prompt_holds_the_context_before_it_unless_it_was_compacted() -> None:
    for session in with_subagents(sessions())[0]:
        assert not session.turns[0].compacted
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            if after.compacted:
                assert session.system_tokens < after.prompt_tokens < before.prompt_tokens
            else:
                assert after.prompt_tokens >= before.context_tokens


def test_a_turn_waits_for_the_slowest_of_its_calls() -> None:
    for turn in turns():
        if turn.tool_calls:
            assert turn.wait_s == max(call.duration_s for call in turn.tool_calls)


def test_each_subagent_is_a_call_of_its_turn_and_forks_its_context() -> None:
    for turn in turns():
        assert len(turn.subagents) == sum(call.name == "Agent" for call in turn.tool_calls)
        for subagent in turn.subagents:
            assert subagent.turns[0].prompt_tokens > turn.context_tokens
            assert not subagent.turns[-1].tool_calls and not subagent.turns[-1].wait_s


def test_every_harness_has_sessions_and_one_system_prompt() -> None:
    found = {(session.harness, session.system_tokens) for session in sessions()}
    assert found == {(name, tokens) for name, (tokens, _) in HARNESSES.items()}


def test_quantiles_are_interpolated_by_their_logarithm() -> None:
    quantiles = Quantiles(((0, 1), (0.5, 100), (1, 10_000)))
    assert [quantiles.at(p) for p in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(
        [1, 10, 100, 1000, 10_000]
    )
