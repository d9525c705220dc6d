"""The command `forecast`: read, split, forecast by each method, evaluate, show."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cachewise_bench.forecast.intervals import read_intervals, split
from cachewise_bench.forecast.methods import METHODS, Intervals, waits
from cachewise_bench.forecast.protocol import DRAWS, OPEN, evaluate
from cachewise_bench.forecast.questions import QUESTIONS, SEEDS, Row, mean_rows
from cachewise_bench.forecast.recorded import read_recorded
from cachewise_bench.workload import WorkloadError

_BROKEN_SHOWN = 5
_ANSWER_WIDTH = 100
_HEADS = {
    "just_started_top1": "started\ntop1",
    "just_started_share": "\nshare",
    "just_started_concordance": "\nconc.",
    "random_moment_top1": "random\ntop1",
    "random_moment_share": "\nshare",
    "random_moment_concordance": "\nconc.",
    "pit_ks": "pit_ks",
    "coverage50": "cov.50",
    "coverage90": "cov.90",
}


def add_parser(commands: Any) -> None:
    """commands: the subparsers of the bench's command line."""
    parser = commands.add_parser(
        "forecast",
        help="compare forecasts of tool waits on recorded sessions",
        description="Learns from some sessions and forecasts the waits of others: who picks the "
        "session that stays away longest, and whose curves are honest?",
    )
    parser.add_argument("--train", metavar="PATH[,PATH]", help="trace files or folders of them")
    parser.add_argument("--test", metavar="PATH[,PATH]", help="the sessions to forecast")
    parser.add_argument("--traces", metavar="PATH[,PATH]", help="both, split by session")
    parser.add_argument(
        "--split", type=float, default=0.8, metavar="F", help="share to train on [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of split and draws [0]")
    parser.add_argument(
        "--method", action="append", choices=METHODS, help="may be repeated [all methods]"
    )
    parser.add_argument(
        "--question",
        choices=QUESTIONS,
        help=f"ask this of --traces instead: means over {SEEDS} seeds (see docs/forecasting.md)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.question:
        return _ask(arguments, console)
    train, test = _read(arguments, console)
    methods = list(dict.fromkeys(arguments.method or METHODS))
    result: dict[str, Any] = {
        "train": _size(train),
        "test": _size(test),
        "seed": arguments.seed,
        "draws": DRAWS,
        "open": OPEN,
        "methods": {},
    }
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(methods, description="forecasting"):
            start = time.perf_counter()
            figures = evaluate(METHODS[name](train, test), waits(test), arguments.seed)
            seconds = time.perf_counter() - start
            result["methods"][name] = figures | {"seconds": seconds}
    Console().print(_table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _ask(arguments: argparse.Namespace, console: Console) -> int:
    if not arguments.traces:
        raise WorkloadError("--question needs --traces")
    recorded = read_recorded([Path(path) for path in arguments.traces.split(",") if path])
    question = QUESTIONS[arguments.question]
    with Progress(console=console, transient=True) as progress:
        seeds = progress.track(range(SEEDS), description=arguments.question)
        rows = mean_rows([list(question(recorded, seed)) for seed in seeds])
    if not rows:
        raise WorkloadError(f"too few waits to ask about {arguments.question}")
    Console(width=max(Console().width, _ANSWER_WIDTH)).print(_answer_table(rows))
    if arguments.json:
        answer = [row._asdict() for row in rows]
        arguments.json.write_text(json.dumps({arguments.question: answer}, indent=1) + "\n")
    return 0


def _answer_table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for head in ("", " "):
        table.add_column(head, no_wrap=True)
    for name in rows[0].figures:
        table.add_column(_HEADS.get(name, name).strip(), justify="right", no_wrap=True)
    for row in rows:
        cells = (
            f"{v:,.0f}" if k in ("waits", "trained") else f"{v:.3f}" for k, v in row.figures.items()
        )
        table.add_row(row.case, row.variant, *(cell.removeprefix("0") or "0" for cell in cells))
    return table


def _read(arguments: argparse.Namespace, console: Console) -> tuple[Intervals, Intervals]:
    """What to learn from, and what to forecast."""
    if bool(arguments.traces) == bool(arguments.train and arguments.test):
        raise WorkloadError("give either --train and --test, or --traces to be split")
    parts = []
    for option in (arguments.traces,) if arguments.traces else (arguments.train, arguments.test):
        intervals, report = read_intervals([Path(path) for path in option.split(",") if path])
        for line in report.broken[:_BROKEN_SHOWN]:
            console.print(f"skipped {line}", style="yellow", markup=False, highlight=False)
        if report.broken:
            console.print(f"{report.broken_count} lines of the traces were skipped")
        parts.append(intervals)
    if arguments.traces:
        return split(parts[0], arguments.split, arguments.seed)
    return parts[0], parts[1]


def _size(intervals: Intervals) -> dict[str, int]:
    return {"sessions": len({i.key for i in intervals}), "waits": len(intervals)}


def _table(result: dict[str, Any]) -> Table:
    size = "{} waits of {} sessions".format
    table = Table(
        title=f"learned from {size(*list(result['train'].values())[::-1])}, "
        f"forecast {size(*list(result['test'].values())[::-1])}",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for head in _HEADS.values():
        table.add_column(head, justify="right", no_wrap=True)
    for method, figures in result["methods"].items():
        cells = (figures[name] for name in _HEADS)
        table.add_row(
            method, *("–" if cell is None else f"{cell:.3f}".lstrip("0") for cell in cells)
        )
    return table
