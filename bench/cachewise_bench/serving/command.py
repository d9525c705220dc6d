"""The command `serving`: how many events and forecasts a predictor takes, how fast, in how much
memory, and while it is trained.

Phases: train a first model; serve; forecasts alone; forecasts while the trainer trains; events.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cachewise_predictor.events import Interval
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachewise_bench.serving.phases import EVENTS_PER_S, QUERIED, REQUESTS_PER_S, run_phases
from cachewise_bench.serving.server import running_predictor, train
from cachewise_bench.serving.workload import tool_waits, write_traces

TRAINED_INTERVALS = 30_000
GOALS = {
    "forecasts.p99_ms": 5.0,
    "training.cpu_s": 60.0,
    "during_training.p99_ratio": 2.0,
    "peak_mb.predictor": 400.0,
}


def add_parser(commands: Any) -> None:
    """commands: the subparsers of the bench's command line."""
    parser = commands.add_parser(
        "serving",
        help="load a real predictor with forecasts, events and a training",
        description="Starts a predictor with an embedded Valkey and measures what it takes, over "
        "loopback, from this process. Run it on an idle machine.",
    )
    parser.add_argument(
        "--traces", metavar="PATH[,PATH]", help="trace files; without them calls are synthetic"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="per phase [%(default)s]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Shows the figures; 1 if a goal is missed."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("reading", total=5)

        def begin(phase: str) -> None:
            progress.update(task, description=phase, advance=1)

        intervals = tool_waits(arguments.traces, TRAINED_INTERVALS)
        with tempfile.TemporaryDirectory(prefix="cachewise-serving-") as folder:
            result = _measure(intervals, Path(folder), arguments.seconds, begin)
    Console().print(_table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if missed(result) else 0


def _measure(
    intervals: Sequence[Interval], folder: Path, seconds: float, begin: Callable[[str], None]
) -> dict[str, Any]:
    traces, data_dir = folder / "traces.jsonl", folder / "data"
    write_traces(intervals, traces)
    begin("first training")
    train(traces, data_dir)
    gc.freeze()  # a full collection of this process' own intervals is no latency of the predictor
    load_before = os.getloadavg()
    with running_predictor(data_dir, folder / "log") as server:
        phases = asyncio.run(run_phases(server, intervals, seconds, begin))
        peak_mb = server.peak_mb()
    return {"load_average": [load_before, os.getloadavg()], **phases, "peak_mb": peak_mb}


def missed(result: dict[str, Any]) -> list[str]:
    """The goals that are not met."""
    found = []
    for name, most in GOALS.items():
        value: Any = result
        for key in name.split("."):
            value = value[key]
        if value > most:
            found.append(name)
    events = result["events"]
    if events["events_per_s"] < 0.99 * EVENTS_PER_S or events["is_lag_growing"]:
        found.append("events")
    if any(result[phase]["failed"] for phase in ("forecasts", "during_training", "events")):
        found.append("failed requests")
    return found


def _table(result: dict[str, Any]) -> Table:
    """Each goal beside what was measured."""
    load_before, load_after = (average[0] for average in result["load_average"])
    table = Table(
        title=f"load average {load_before:.1f} before, {load_after:.1f} after", box=box.SIMPLE
    )
    for head in ("", "measured", "goal"):
        table.add_column(head, justify="left" if not head else "right")
    alone, during = result["forecasts"], result["during_training"]
    events, training = result["events"], result["training"]
    rows = (
        (f"forecasts of {QUERIED} sessions, {REQUESTS_PER_S}/s: P50", alone["p50_ms"], "ms", ""),
        ("  P99", alone["p99_ms"], "ms", "5 ms"),
        ("  P99 while a training runs", during["p99_ms"], "ms", ""),
        ("  the same, times that without", during["p99_ratio"], "", "2"),
        (
            f"training on {training['intervals']:,.0f} waits: processor",
            training["cpu_s"],
            "s",
            "60 s",
        ),
        ("events taken per second", events["events_per_s"], "", f"{EVENTS_PER_S:,}"),
        ("  forecasts sent to the replica per second", events["forecasts_per_s"], "", ""),
        ("  P99 of a report", events["p99_ms"], "ms", ""),
        ("  share of a core", events["cpu_share"], "", ""),
        ("  intervals not stored yet, at most", max(events["lag_intervals"]), "", ""),
        ("  at the end", events["lag_intervals"][-1], "", "not growing"),
        ("most memory of the predictor", result["peak_mb"]["predictor"], "MB", "400 MB"),
        ("  of its trainer", result["peak_mb"].get("trainer", 0.0), "MB", ""),
    )
    for name, value, unit, goal in rows:
        table.add_row(name, f"{value:,.1f} {unit}".strip(), goal)
    table.caption = f"missed: {', '.join(missed(result)) or 'nothing'}"
    return table
