"""What a comparison leaves behind: a table for the terminal, a JSON file, a page with plots."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from cachewise_bench.engine import PolicyRun
from cachewise_bench.measure import hit_rate, medians, ratios

ROWS = (
    ("session_time_mean_s", "session time, mean (s)"),
    ("session_time_p99_s", "session time, P99 (s)"),
    ("session_wall_mean_s", "session time with tools, mean (s)"),
    ("request_p50_s", "request latency, P50 (s)"),
    ("request_p99_s", "request latency, P99 (s)"),
    ("prefix_hit_rate", "prefix hit rate"),
    ("evicted_blocks", "evicted blocks"),
    ("recomputed_tokens", "recomputed tokens"),
    ("requests", "requests"),
    ("failed_requests", "failed requests"),
    ("tool_calls_emitted", "tool calls emitted"),
    ("tool_calls_reported", "tool calls reported"),
    ("forecasts_delivered", "forecasts delivered"),
)
COLOURS = {"stock": "#8a8f98", "cachewise": "#0b7a75", "server": "#2b6cb0"}


def as_json(rounds: Sequence[Sequence[PolicyRun]], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The result file: one object per policy, their ratio if both ran, and the conditions.

    Of several rounds these are medians, the ratio the median of the rounds' ratios; `rounds` then
    has each round's figures.
    """
    each = [_figures(runs) for runs in rounds]
    result: dict[str, Any] = {key: medians([figures[key] for figures in each]) for key in each[0]}
    if len(each) > 1:
        result["rounds"] = each
    return result | {"conditions": dict(conditions)}


def _figures(runs: Sequence[PolicyRun]) -> dict[str, dict[str, Any]]:
    """One round's figures per policy and, if both ran, their ratio."""
    by_policy = {run.policy: run.result for run in sorted(runs, key=lambda r: r.policy != "stock")}
    figures: dict[str, dict[str, Any]] = {k: asdict(result) for k, result in by_policy.items()}
    if by_policy.keys() >= {"stock", "cachewise"}:
        figures["ratio"] = ratios(by_policy["stock"], by_policy["cachewise"])
    return figures


def as_table(result: Mapping[str, Any]) -> Table:
    """The same as a table for the terminal."""
    table = Table(title="Agent sessions on a real vLLM server")
    table.add_column("")
    for column in _columns(result):
        table.add_column(column, justify="right")
    for row in _cells(result):
        table.add_row(*row)
    return table


def write_json(result: Mapping[str, Any], path: Path) -> None:
    """Writes the result file."""
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write_page(runs: Sequence[PolicyRun], result: Mapping[str, Any], path: Path) -> None:
    """Writes the report: one HTML file that needs nothing else."""
    template = resources.files("cachewise_bench").joinpath("report.html").read_text("utf-8")
    page = jinja2.Environment(autoescape=True).from_string(template)
    text = page.render(
        columns=_columns(result),
        rows=_cells(result),
        ratio=result.get("ratio"),
        conditions=result["conditions"],
        plots=[(title, note, _svg(draw, runs)) for title, note, draw in _known_plots(runs)],
    )
    path.write_text(text, encoding="utf-8")


def _columns(result: Mapping[str, Any]) -> list[str]:
    policies = _policies(result)
    return [*policies, "stock ÷ cachewise"] if "ratio" in result else policies


def _policies(result: Mapping[str, Any]) -> list[str]:
    return [key for key in result if key not in ("ratio", "rounds", "conditions")]


def _cells(result: Mapping[str, Any]) -> list[list[str]]:
    policies = _policies(result)
    rows = []
    for key, label in ROWS:
        row = [label, *(_cell(result[policy][key]) for policy in policies)]
        if "ratio" in result:
            ratio = result["ratio"].get(key)
            row.append("" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return rows


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


# ---- plots ---------------------------------------------------------------------------------------


def _session_times(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    names = sorted({r.session for r in runs[0].requests})
    width = 0.8 / len(runs)
    for i, run in enumerate(runs):
        times = [sum(r.latency_s for r in run.requests if r.session == name) for name in names]
        places = np.arange(len(names)) + i * width
        axes.bar(places, times, width, label=run.policy, color=COLOURS[run.policy])
    axes.set_xticks(
        np.arange(len(names)) + 0.4 - width / 2, [str(i + 1) for i in range(len(names))]
    )
    axes.set(xlabel="session", ylabel="sum of its requests' latencies (s)")


def _latencies(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    for run in runs:
        latencies = np.sort([r.latency_s for r in run.requests if not r.error])
        shares = np.arange(1, len(latencies) + 1) / max(1, len(latencies))
        axes.step(latencies, shares, where="post", label=run.policy, color=COLOURS[run.policy])
    axes.set(xlabel="request latency (s)", ylabel="share of requests", ylim=(0, 1))


def _evictions(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    for run in runs:
        times = [s.at_s for s in run.samples]
        evicted = [s.evicted_blocks for s in run.samples]
        axes.plot(times, evicted, label=run.policy, color=COLOURS[run.policy])
    axes.set(xlabel="time since the start (s)", ylabel="evicted blocks, cumulative")


def _hit_rates(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    for run in runs:
        turns = range(max(r.turn for r in run.requests) + 1)
        at = [[r for r in run.requests if r.turn == turn and not r.error] for turn in turns]
        rates = [hit_rate(some) for some in at]
        axes.plot(turns, rates, marker="o", label=run.policy, color=COLOURS[run.policy])
    axes.set(xlabel="turn of the session", ylabel="prefix hit rate", ylim=(0, 1))


def _usage(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    for run in runs:
        times = [s.at_s for s in run.samples]
        usage = [100 * s.kv_usage for s in run.samples]
        axes.plot(times, usage, label=run.policy, color=COLOURS[run.policy])
    axes.set(
        xlabel="time since the start (s)", ylabel="blocks in use by requests (%)", ylim=(0, 100)
    )


Draw = Callable[[Axes, Sequence[PolicyRun]], None]
PLOTS: tuple[tuple[str, str, Draw], ...] = (
    ("Session time", "Tools' and people's time is not included.", _session_times),
    ("Request latency", "How many requests were done within a time.", _latencies),
    ("Evictions", "Cached blocks that vLLM gave away, by its own events.", _evictions),
    ("Prefix hit rate", "Share of the prompts' tokens that were not computed again.", _hit_rates),
    ("KV pool", "What is not in use holds the prefixes of sessions that wait for a tool.", _usage),
)


def _known_plots(runs: Sequence[PolicyRun]) -> list[tuple[str, str, Draw]]:
    """The plots whose figures a server that was not ours told."""
    unknown: set[Draw] = set()
    if any(run.result.evicted_blocks is None for run in runs):
        unknown.add(_evictions)
    if any(run.result.prefix_hit_rate is None for run in runs):
        unknown.add(_hit_rates)
    if not any(run.samples for run in runs):
        unknown.add(_usage)
    return [plot for plot in PLOTS if plot[2] not in unknown]


def _svg(draw: Draw, runs: Sequence[PolicyRun]) -> str:
    """A plot as SVG text for an HTML page."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, runs)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
