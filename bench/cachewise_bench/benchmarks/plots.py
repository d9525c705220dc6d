"""The pictures of the benchmarks, as SVG: figures against N, and the frontier of the mean session
time and the longest wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cachewise_bench.benchmarks.figures import EXPERIMENT, ORACLE, OURS, STOCK, Figures
from cachewise_bench.replay_plot import PANELS

FIXED_COLOURS = {STOCK: "#8a8f98", OURS: "#0b7a75"}
OTHER_COLOURS = ("#c2571a", "#7a4fb5", "#2b6cb0", "#b8860b", "#a23b6a", "#4d7c0f")


def write_plots(figures: Figures, folder: Path, stem: str) -> list[str]:
    """Writes the pictures into the folder and returns their names."""
    written = []
    for name, figure in (
        (f"{stem}-against-n.svg", _against_n(figures)),
        (f"{stem}-frontier.svg", _frontiers(figures)),
    ):
        with matplotlib.rc_context({"svg.hashsalt": "cachewise", "svg.fonttype": "none"}):
            figure.savefig(folder / name, metadata={"Date": None})
        written.append(name)
    return written


def _against_n(figures: Figures) -> Figure:
    """The policies that were replayed with every number of sessions."""
    counts = list(figures.by_count)
    everywhere = set.intersection(*(set(some) for some in figures.by_count.values()))
    policies = [name for name in figures.by_count[counts[0]] if name in everywhere]
    colours = _colours(policies)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for name in policies:
            values = [figures.by_count[count][name][key] for count in counts]
            width = 2.5 if name in FIXED_COLOURS else 1.3
            axes.plot(counts, values, "o-", ms=4, lw=width, color=colours[name], label=name)
        axes.set(title=title, xlabel="sessions at once", xticks=counts)
        axes.set_ylim(bottom=0)
        _tidy(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(policies), frameon=False)
    return figure


def _frontiers(figures: Figures) -> Figure:
    """A panel for each number of sessions that has all policies; left and low is good."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    panels = figure.subplots(1, len(figures.table_counts), squeeze=False).flat
    for axes, count in zip(panels, figures.table_counts, strict=True):
        rows = [r for r in figures.by_count[count].values() if r["kind"] != EXPERIMENT]
        points = [(r["session_time_mean_s"], r["max_wait_s"], r["policy"], r["kind"]) for r in rows]
        real = sorted((x, y) for x, y, _, kind in points if kind != ORACLE)
        frontier = [p for i, p in enumerate(real) if all(p[1] < q[1] for q in real[:i])]
        axes.step(*zip(*frontier, strict=True), where="post", lw=1, color="#c9ccd1", zorder=0)
        for x, y, name, kind in points:
            colour = FIXED_COLOURS.get(name, "#2b6cb0")
            face = "none" if kind == ORACLE else colour
            axes.scatter([x], [y], s=26, facecolors=face, edgecolors=colour)
            weight = "bold" if name in FIXED_COLOURS else "normal"
            axes.annotate(
                name, (x, y), (4, 3), textcoords="offset points", fontsize=7, fontweight=weight
            )
        axes.set(
            title=f"{count} sessions at once (rings see the future)",
            xlabel="session time, mean (s)",
            ylabel="longest wait (s)",
            xscale="log",
            yscale="log",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_formatter("{x:,.0f}")
        _tidy(axes)
    return figure


def _colours(policies: Sequence[str]) -> dict[str, str]:
    others = [name for name in policies if name not in FIXED_COLOURS]
    return FIXED_COLOURS | {
        name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)
    }


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
