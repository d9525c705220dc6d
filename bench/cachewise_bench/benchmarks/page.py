"""docs/benchmarks.md: made from figures, never by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachewise_bench.benchmarks.bad_news import CLAIMS, bad_news
from cachewise_bench.benchmarks.figures import EXPERIMENT, ORACLE, OURS, STOCK, Figures, Row
from cachewise_bench.digits import three_digits

HEAD = (
    "# Benchmarks\n\n"
    "*Made by `cachewise-bench benchmarks`; do not edit.* Agent sessions as closed loops over "
    "vLLM's real scheduler, KV cache manager and block pool, on a virtual clock with a cost model "
    "of the hardware (`cachewise-bench replay`). No GPU is involved: times are the cost model's, "
    "exact and repeatable; evictions and hits are vLLM's own. CacheWise is the product's own "
    "scheduler (`ours` in the tables).\n"
)
Columns = Sequence[tuple[str, str]]
"""Keys of the figures, and their headings; the empty key is the ratio of the mean session times."""

COLUMNS: Columns = (
    ("session_time_mean_s", "session time s"),
    ("", "stock ÷ it"),
    ("session_time_p99_s", "P99"),
    ("request_p50_s", "request P50 s"),
    ("request_p99_s", "P99"),
    ("request_max_s", "longest"),
    ("max_wait_s", "longest wait s"),
    ("goodput_tok_s", "goodput tok/s"),
    ("recompute_ratio", "recompute"),
    ("hit_rate", "hit rate"),
    ("evicted_blocks", "evicted blocks"),
    ("preemptions", "preemptions"),
    ("jain", "Jain"),
    ("scheduler_cpu_us_per_step", "CPU µs/step"),
)
LEGEND = (
    "Session time: the mean over sessions of the sum of their requests' latencies; tools and "
    "people are not included. Goodput: new tokens per second, recomputed ones left out. Recompute: "
    "computed ÷ new tokens. Longest wait: of any request, until it is admitted. Jain: Jain's index "
    "over the sessions' new tokens per second of session time. CPU: of this machine, the only "
    "figure that another run changes. \\* sees the future: no policy that could be built. "
    "`ours-no-forecast`: without a predictor. `ours-order`: only the prefix-aware order. "
    "`ours-fair`: the preset `fair`.\n"
)


def page(
    figures: Figures, offload: Figures, conditions: Mapping[str, Any], plots: Sequence[str]
) -> str:
    """The Markdown text. offload: with host memory for evicted blocks. plots: the names of the
    pictures beside it."""
    parts = [
        HEAD,
        "## Conditions\n",
        *(f"- {key}: {value}" for key, value in conditions["shown"].items()),
        "\n```",
        *conditions["commands"],
        "```\n",
        *_tables(figures),
        LEGEND,
        *_offload(offload),
        "## Against the number of sessions\n",
        *(f"![{name}]({name})\n" for name in plots),
        "## The bad news\n",
        *(f"- {sentence}" for sentence in bad_news(figures)),
        "\n## The paper's figures, here\n",
        *_claims(figures),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _tables(figures: Figures) -> Iterator[str]:
    """A table for each number of sessions, the shortest session time first."""
    for count in figures.table_counts:
        yield f"## {count} sessions at once\n"
        yield from _table(figures, count, COLUMNS)


def _table(figures: Figures, count: int, columns: Columns) -> Iterator[str]:
    yield f"| policy | {' | '.join(name for _, name in columns)} |"
    yield "|---" + "|---:" * len(columns) + "|"
    rows = [r for r in figures.by_count[count].values() if r["kind"] != EXPERIMENT]
    for row in sorted(rows, key=lambda r: r["session_time_mean_s"]):
        yield f"| {' | '.join(_cells(row, figures.get(count, STOCK), columns))} |"
    yield ""


def _cells(row: Row, stock: Row | None, columns: Columns) -> Iterator[str]:
    name = f"**{row['policy']}**" if row["policy"] == OURS else row["policy"]
    yield name + ("\\*" if row["kind"] == ORACLE else "")
    for key, _ in columns:
        if key:
            yield three_digits(row[key])
        else:
            mean = row["session_time_mean_s"]
            yield f"{stock['session_time_mean_s'] / mean:.2f}" if stock else "–"


OFFLOAD_COLUMNS: Columns = (
    ("session_time_mean_s", "session time s"),
    ("", "stock ÷ it"),
    ("request_p50_s", "request P50 s"),
    ("request_p99_s", "P99"),
    ("request_max_s", "longest"),
    ("recompute_ratio", "recompute"),
    ("evicted_blocks", "evicted blocks"),
    ("loaded_blocks", "loaded blocks"),
)


def _offload(figures: Figures) -> Iterator[str]:
    for count in figures.table_counts:
        gib = next(iter(figures.by_count[count].values()))["offload_gib"]
        yield f"## {count} sessions with {gib:.0f} GiB of host memory for evicted blocks\n"
        yield from _table(figures, count, OFFLOAD_COLUMNS)
        yield (
            "vLLM's own CPU offloading: a block that is there is loaded over PCIe, not computed. "
            "The paper gives 1.19 for session time, stock ÷ CacheWise, with 30 sessions.\n"
        )


def _claims(figures: Figures) -> Iterator[str]:
    """The paper's ratios beside ours."""
    counts = figures.table_counts
    yield f"| | paper | {' | '.join(f'N = {count}' for count in counts)} |"
    yield "|---|---:" + "|---:" * len(counts) + "|"
    for claim in CLAIMS:
        found = [figures.ratio(count, claim.of, claim.to, claim.key) for count in counts]
        cells = ["–" if ratio is None else f"{ratio:.2f}" for ratio in found]
        yield f"| {claim.words} | {claim.published} | {' | '.join(cells)} |"
    yield ""
    yield (
        "CacheWise is here the paper's policy as published (`cachewise-c100`), not the product; "
        "the order alone is `vllm-prefix`."
    )
