from __future__ import annotations

import pytest
from cachewise_bench.benchmarks.bad_news import MEASURES, bad_news, faster
from cachewise_bench.benchmarks.figures import EXPERIMENT, ORACLE, PRODUCT

from .rows import figures, row

OURS = row("ours", kind=PRODUCT, session_time_mean_s=50.0)


def test_without_bad_news_there_is_none() -> None:
    assert bad_news(figures(row("vllm"), row("continuum"), OURS)) == []


def test_a_tie_with_stock_is_told_for_each_number_of_sessions() -> None:
    tie = row("ours", 5, PRODUCT, session_time_mean_s=99.0)
    found = bad_news(figures(row("vllm", 5), tie, row("vllm"), OURS))
    assert found == [
        "Nothing is gained in session time with so many sessions at once: "
        "5 (stock ÷ CacheWise 1.01)."
    ]


def test_a_loss_names_the_best_rival_and_both_figures() -> None:
    rivals = [row("vllm", request_p99_s=45.0), row("continuum", request_p99_s=31.0), row("lpm")]
    assert bad_news(figures(*rivals, OURS)) == [
        "20 sessions, request latency P99: CacheWise 50.0 s, continuum 31.0 s; 2 rivals are "
        "better, stock vLLM among them."
    ]


def test_stock_itself_may_be_the_best() -> None:
    found = bad_news(figures(row("vllm", max_wait_s=40.0), OURS))
    assert found == ["20 sessions, longest wait: CacheWise 80.0 s, vllm 40.0 s."]


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.key)
def test_every_measure_knows_which_side_is_better(measure: object) -> None:
    key, larger = measure.key, measure.larger_is_better  # type: ignore[attr-defined]
    better = row("lpm", **{key: OURS[key] * (1.5 if larger else 0.5)})
    worse = row("lpm", **{key: OURS[key] * (0.5 if larger else 1.5)})
    assert any(": CacheWise" in said for said in bad_news(figures(better, OURS)))
    assert bad_news(figures(worse, OURS)) == []


def test_oracles_and_experiments_are_no_rivals() -> None:
    fast = {"session_time_mean_s": 1.0}
    found = bad_news(
        figures(OURS, row("belady", kind=ORACLE, **fast), row("ours-x", kind=EXPERIMENT, **fast))
    )
    assert not any(": CacheWise" in said for said in found)


def test_it_says_what_forecasts_bring_and_what_perfect_ones_would() -> None:
    without = row("ours-no-forecast", kind=PRODUCT, session_time_mean_s=55.0)
    perfect = row("ours-oracle", kind=ORACLE, session_time_mean_s=40.0)
    assert bad_news(figures(OURS, without, perfect)) == [
        "20 sessions: forecasts make a session 10 % faster; perfect ones would make it 25 % faster."
    ]


def test_wrong_forecasts_and_the_fair_preset_are_told() -> None:
    wrong = row("ours-reversed", kind=EXPERIMENT, session_time_mean_s=90.0)
    fair = row("ours-fair", kind=PRODUCT, session_time_mean_s=60.0, max_wait_s=30.0)
    assert bad_news(figures(OURS, wrong, fair)) == [
        "20 sessions with forecasts that are wrong, mean session time: reversed 90.0 s; with "
        "learned ones 50.0 s.",
        "20 sessions, the preset `fair` against `throughput`: longest wait 30.0 against 80.0 s, "
        "mean session time 60.0 s against 50.0 s.",
    ]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.25, "25 % faster"), (1.01, "no faster and no slower"), (0.8, "25 % slower")],
)
def test_ratios_become_words(ratio: float, words: str) -> None:
    assert faster(ratio) == words
