"""The bad news of the benchmarks, written from the figures: where the product ties, where it loses
and to whom, what forecasts do not bring, and which of the paper's figures do not appear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachewise_bench.benchmarks.figures import (
    EXPERIMENT,
    FAIR,
    NO_FORECAST,
    OURS,
    RIVAL,
    STOCK,
    Figures,
    Row,
)
from cachewise_bench.digits import three_digits

TIE = 1.02
"""Figures within 2 % of each other are equal."""


@dataclass(frozen=True)
class Measure:
    """A figure that policies are compared by."""

    key: str
    words: str
    unit: str = "s"
    larger_is_better: bool = False

    def is_better(self, one: Row, other: Row) -> bool:
        """By more than a tie."""
        a, b = one[self.key], other[self.key]
        return bool(a > TIE * b if self.larger_is_better else TIE * a < b)

    def show(self, row: Row) -> str:
        return f"{three_digits(row[self.key])}{f' {self.unit}' if self.unit else ''}"


SESSION_TIME = Measure("session_time_mean_s", "mean session time")
MEASURES = (
    SESSION_TIME,
    Measure("session_time_p99_s", "session time P99"),
    Measure("request_p50_s", "request latency P50"),
    Measure("request_p99_s", "request latency P99"),
    Measure("max_wait_s", "longest wait"),
    Measure("goodput_tok_s", "goodput", "tokens/s", larger_is_better=True),
    Measure("jain", "fairness (Jain's index)", "", larger_is_better=True),
    Measure("scheduler_cpu_us_per_step", "scheduler CPU per step", "µs"),
)


def bad_news(figures: Figures) -> list[str]:
    """Sentences, each with the figures that it is made from."""
    return [
        *_ties(figures),
        *(said for count in figures.table_counts for said in _losses(figures, count)),
        *_forecasts(figures),
        *_wrong_forecasts(figures),
        *_fair(figures),
    ]


def _ties(figures: Figures) -> Iterator[str]:
    tied = []
    for count in figures.by_count:
        ratio = figures.ratio(count, STOCK, OURS, SESSION_TIME.key)
        if ratio is not None and ratio < TIE:
            tied.append(f"{count} (stock ÷ CacheWise {ratio:.2f})")
    if tied:
        yield f"Nothing is gained in session time with so many sessions at once: {', '.join(tied)}."


def _losses(figures: Figures, count: int) -> Iterator[str]:
    """To the best rival by each measure; stock vLLM is named where it is better too."""
    ours = figures.get(count, OURS)
    for measure in MEASURES if ours else ():
        assert ours is not None
        better = [r for r in figures.of_kind(count, RIVAL) if measure.is_better(r, ours)]
        if not better:
            continue
        best = (max if measure.larger_is_better else min)(better, key=lambda r: r[measure.key])
        others = f"; {len(better)} rivals are better" if len(better) > 1 else ""
        if best["policy"] != STOCK and any(r["policy"] == STOCK for r in better):
            others += ", stock vLLM among them"
        yield (
            f"{count} sessions, {measure.words}: CacheWise {measure.show(ours)}, "
            f"{best['policy']} {measure.show(best)}{others}."
        )


def _forecasts(figures: Figures) -> Iterator[str]:
    """What the product's forecasts bring, and what perfect ones would."""
    for count in figures.table_counts:
        learned = figures.ratio(count, NO_FORECAST, OURS, SESSION_TIME.key)
        perfect = figures.ratio(count, OURS, "ours-oracle", SESSION_TIME.key)
        if learned is not None:
            said = f"{count} sessions: forecasts make a session {faster(learned)}"
            yield (
                f"{said}; perfect ones would make it {faster(perfect)}." if perfect else f"{said}."
            )


def _wrong_forecasts(figures: Figures) -> Iterator[str]:
    for count in figures.table_counts:
        ours = figures.get(count, OURS)
        parts = [
            f"{row['policy'].removeprefix('ours-')} {SESSION_TIME.show(row)}"
            for row in figures.of_kind(count, EXPERIMENT)
        ]
        if ours and parts:
            yield (
                f"{count} sessions with forecasts that are wrong, {SESSION_TIME.words}: "
                f"{', '.join(parts)}; with learned ones {SESSION_TIME.show(ours)}."
            )


def _fair(figures: Figures) -> Iterator[str]:
    for count in figures.table_counts:
        ours, fair = figures.get(count, OURS), figures.get(count, FAIR)
        if ours and fair:
            yield (
                f"{count} sessions, the preset `fair` against `throughput`: longest wait "
                f"{three_digits(fair['max_wait_s'])} against {three_digits(ours['max_wait_s'])} s, "
                f"{SESSION_TIME.words} {SESSION_TIME.show(fair)} against "
                f"{SESSION_TIME.show(ours)}."
            )


def faster(ratio: float) -> str:
    """A ratio of times, above 1 where it is faster."""
    if 1 / TIE < ratio < TIE:
        return "no faster and no slower"
    return (
        f"{100 * (ratio - 1):.0f} % faster"
        if ratio > 1
        else f"{100 * (1 / ratio - 1):.0f} % slower"
    )


# ---- the paper's figures -------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A ratio that the paper reports."""

    words: str
    published: str
    of: str
    to: str
    key: str


PAPERS, ORDER = "cachewise-c100", "vllm-prefix"
"""The paper's policy with up to 100 clusters for a tool, and its prefix-aware order alone."""

CLAIMS = (
    Claim("session time, stock ÷ CacheWise", "2.7-3.5", STOCK, PAPERS, "session_time_mean_s"),
    Claim("session time, stock ÷ order alone", "1.85-2.66", STOCK, ORDER, "session_time_mean_s"),
    Claim("session time, order alone ÷ CacheWise", "1.7-2", ORDER, PAPERS, "session_time_mean_s"),
    Claim("goodput, CacheWise ÷ stock", "1.64-2", PAPERS, STOCK, "goodput_tok_s"),
    Claim("evicted blocks, stock ÷ CacheWise", "2-2.6", STOCK, PAPERS, "evicted_blocks"),
    Claim("request P50, stock ÷ CacheWise", "13-14", STOCK, PAPERS, "request_p50_s"),
    Claim("request P99, CacheWise ÷ stock", "above 1", PAPERS, STOCK, "request_p99_s"),
    Claim("scheduler CPU, CacheWise ÷ stock", "2.4-3", PAPERS, STOCK, "scheduler_cpu_us_per_step"),
)
"""arXiv 2606.16824: more than 10 sessions at once; the order alone with 40."""
