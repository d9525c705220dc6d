from __future__ import annotations

import numpy as np
import pytest
from cachewise_bench.synthetic import Quantiles, synthetic_sessions

SESSIONS = synthetic_sessions(400, seed=3)
TURNS = [turn for session in SESSIONS for turn in session.turns]


def test_the_same_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert synthetic_sessions(3, 5) == synthetic_sessions(3, 5) != synthetic_sessions(3, 6)


def test_a_session_does_not_depend_on_how_many_are_drawn() -> None:
    assert synthetic_sessions(5, 0)[:2] == synthetic_sessions(2, 0)


def test_prompts_grow() -> None:
    for session in SESSIONS:
        sizes = [turn.prompt_tokens for turn in session.turns]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("values", "published"),
    [
        ([len(s.turns) for s in SESSIONS], {50: 44, 90: 149}),
        ([s.turns[0].prompt_tokens for s in SESSIONS], {50: 24_000}),
        ([t.output_tokens for t in TURNS], {50: 217, 90: 894}),
        ([t.wait_s for t in TURNS if t.tool_calls], {50: 0.3, 90: 13.6, 99: 216}),
        ([t.wait_s for t in TURNS if not t.tool_calls and t.wait_s], {50: 86, 90: 1236}),
    ],
)
def test_quantiles_are_the_published_ones(values: list[float], published: dict[int, float]) -> None:
    for percent, value in published.items():
        assert np.percentile(values, percent) == pytest.approx(value, rel=0.15)


def test_quantiles_are_interpolated_by_their_logarithm() -> None:
    quantiles = Quantiles(((0, 1), (0.5, 100), (1, 10_000)))
    assert [quantiles.at(p) for p in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(
        [1, 10, 100, 1000, 10_000]
    )
