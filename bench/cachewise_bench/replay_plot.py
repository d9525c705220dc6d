"""Plots of a replay: figures against N, and the frontier of mean against longest wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PANELS = (
    ("session_time_mean_s", "session time, mean (s)"),
    ("evicted_blocks", "evicted blocks"),
    ("request_p99_s", "request latency, P99 (s)"),
    ("goodput_tok_s", "goodput (new tokens/s)"),
)


def write_plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One picture with a panel per figure; the last panel is the frontier at the largest N."""
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 3).flat
    by_policy: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_policy[row["policy"]][row["sessions"]].append(row)
    for axis, (key, title) in zip(axes, PANELS, strict=False):
        for policy, by_count in by_policy.items():
            counts = sorted(by_count)
            axis.plot(counts, [_mean(by_count[n], key) for n in counts], marker="o", label=policy)
        axis.set(title=title, xlabel="concurrent sessions")
        axis.set_ylim(bottom=0)
    frontier = figure.axes[len(PANELS)]
    most = max(row["sessions"] for row in rows)
    for policy, by_count in by_policy.items():
        if most in by_count:
            x, y = (_mean(by_count[most], k) for k in ("session_time_mean_s", "max_wait_s"))
            frontier.scatter([x], [y], label=policy)
            frontier.annotate(policy, (x, y), fontsize=7)
    frontier.set(title=f"N = {most}", xlabel="session time, mean (s)", ylabel="longest wait (s)")
    legend = figure.axes[-1]
    legend.axis("off")
    legend.legend(*figure.axes[0].get_legend_handles_labels(), loc="center", fontsize=8)
    figure.savefig(path, dpi=110)


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows)) / len(rows)
