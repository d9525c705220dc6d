"""The command `step-cost`: the scheduler's own CPU per step, stock vLLM's against ours.

Both run in this process under the same steady load and take turns, a few steps each. One number is
varied at a time: blocks of the pool, sessions that are away, requests that wait; a last line has
all three at their largest.

What is measured is the CPU time of this thread in add_request, schedule and update_from_output, so
that other processes do not count. Python's garbage collector is counted apart: it runs when it
likes, mostly for the objects of the load itself. As in vLLM's engine, what exists when the steps
begin is frozen, so that the collector does not look at it.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import thread_time_ns
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cachewise_bench.argument_types import whole_number, whole_numbers
from cachewise_bench.workload import WorkloadError

EPILOG = """examples:
  cachewise-bench step-cost
      how the cost of a step grows with each of the three numbers (some minutes)
  cachewise-bench step-cost --blocks 47000 --sessions 40 --waiting 20 --steps 5000 --json cost.json
      one size alone
"""

MOST_STEP_US = 5_000.0
"""The goal: no step of ours takes longer."""

BASE = {"blocks": 20_000, "sessions": 100, "waiting": 20}
"""What is not varied has this value."""
VARIED = {
    "blocks": [1_000, 10_000, 100_000],
    "sessions": [10, 100, 1_000],
    "waiting": [10, 100, 1_000],
}
STEPS_AT_ONCE = 20


def add_parser(commands: Any) -> None:
    """Adds `step-cost` to the command line."""
    parser = commands.add_parser(
        "step-cost",
        help="measure the scheduler's CPU per step against stock vLLM's",
        description="Measures the CPU time of vLLM's scheduler per step, stock and with CacheWise, "
        "as it grows with the pool, the sessions that are away, and the requests that wait. Steps "
        f"are shown in microseconds; the goal is that none of ours is above {MOST_STEP_US:,.0f}. "
        "No model, no GPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    for name, values in VARIED.items():
        default = ",".join(map(str, values))
        parser.add_argument(
            f"--{name}",
            type=whole_numbers,
            metavar="N[,N]",
            help=f"[{default}; {BASE[name]} while another is varied]",
        )
    parser.add_argument(
        "--steps",
        type=whole_number,
        default=1_000,
        metavar="N",
        help="measured of each scheduler at each size [%(default)s]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Shows the figures; 1 if a step of ours was too long. Raises WorkloadError for bad options."""
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise WorkloadError(f"--json {arguments.json}: there is no such folder")
    given = {name: getattr(arguments, name) for name in VARIED}
    cases = list(sizes({name: values for name, values in given.items() if values}))
    rows = []
    with Progress(*_COLUMNS, console=console) as progress:
        bar = progress.add_task("sizes", total=len(cases))
        for varied, size in cases:
            progress.update(bar, description=" ".join(f"{k}={v:,}" for k, v in size.items()))
            rows.append({"varied": varied, **size, **measure(size, arguments.steps)})
            progress.advance(bar)
    Console().print(_table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["ours"]["max_us"] > MOST_STEP_US for row in rows) else 0


def sizes(given: dict[str, list[int]]) -> Iterator[tuple[str, dict[str, int]]]:
    """What is varied, and the size: one number at a time, then all at their largest.

    given: the values of those numbers that were named; where none is, all three are varied. One
    that has a single value has it always.
    """
    base = BASE | {name: values[0] for name, values in given.items() if len(values) == 1}
    varied = {name: values for name, values in (given or VARIED).items() if len(values) > 1}
    for name, values in varied.items():
        for value in values:
            yield name, base | {name: value}
    if len(varied) != 1:
        yield "all", base | {name: max(values) for name, values in varied.items()}


def measure(size: dict[str, int], steps: int) -> dict[str, Any]:
    """The figures of both schedulers, and the ratio of their means."""
    from cachewise_engine_hook.scheduler import CacheWiseScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from cachewise_bench.steady_load import Size, SteadyLoad

    loads = [SteadyLoad(kind, Size(**size)) for kind in (Scheduler, CacheWiseScheduler)]
    watches = [Stopwatch(), Stopwatch()]
    batches = [0, 0]
    gc.collect()
    gc.freeze()
    try:
        for done in range(0, steps, STEPS_AT_ONCE):
            for i, load in enumerate(loads):
                with watches[i] as watch:
                    for _ in range(min(STEPS_AT_ONCE, steps - done)):
                        batches[i] += load.step(watch.time)
                        watch.end_step()
    finally:
        gc.unfreeze()
    stock, ours = (
        watch.figures() | {"requests": round(batch / steps, 1)}
        for watch, batch in zip(watches, batches, strict=True)
    )
    return {"stock": stock, "ours": ours, "ratio": round(ours["mean_us"] / stock["mean_us"], 3)}


class Stopwatch:
    """CPU time of this thread per step, that of the garbage collector apart."""

    def __init__(self) -> None:
        self._steps_ns: list[int] = []
        self._collecting_ns: list[int] = []
        self._step_ns = self._collected_ns = 0
        self._began_collecting = 0

    def __enter__(self) -> Stopwatch:
        gc.callbacks.append(self._collector)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.callbacks.remove(self._collector)

    def time(self, work: Callable[[], Any]) -> Any:
        """Calls it, as a part of the step."""
        collected, began = self._collected_ns, thread_time_ns()
        result = work()
        spent = thread_time_ns() - began
        self._step_ns += spent - (self._collected_ns - collected)
        return result

    def end_step(self) -> None:
        self._steps_ns.append(self._step_ns)
        self._collecting_ns.append(self._collected_ns)
        self._step_ns = self._collected_ns = 0

    def figures(self) -> dict[str, float]:
        """In microseconds. Of the collector the longest that it took in one step, and the mean,
        outside of the scheduler's work too."""
        steps = sorted(ns / 1e3 for ns in self._steps_ns)
        collecting = [ns / 1e3 for ns in self._collecting_ns]
        found = {
            "median_us": statistics.median(steps),
            "mean_us": statistics.fmean(steps),
            "p99_us": steps[int(0.99 * (len(steps) - 1))],
            "max_us": steps[-1],
            "gc_mean_us": statistics.fmean(collecting),
            "gc_max_us": max(collecting),
        }
        return {name: round(value, 1) for name, value in found.items()}

    def _collector(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_collecting = thread_time_ns()
        else:
            self._collected_ns += thread_time_ns() - self._began_collecting


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="CPU per step in µs, stock / ours", box=box.SIMPLE, padding=0)
    for head in ("varied", *BASE, "median", "mean", "longest", "ratio"):
        table.add_column(head, justify="right")
    for row in rows:
        numbers = [f"{row[name]:,}" for name in BASE]
        figures = [
            f"{row['stock'][key]:,.0f} / {row['ours'][key]:,.0f}"
            for key in ("median_us", "mean_us", "max_us")
        ]
        table.add_row(row["varied"], *numbers, *figures, f"{row['ratio']:.2f}")
    longest = max(row["ours"]["max_us"] for row in rows)
    collecting = max(row["ours"]["gc_max_us"] for row in rows)
    table.caption = (
        f"ratio: of the means. Our longest step: {longest:,.0f} µs; goal: at most "
        f"{MOST_STEP_US:,.0f}. Not counted: the garbage collector, {collecting:,.0f} µs at most"
    )
    return table


_COLUMNS = (
    TextColumn("{task.description:<44}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)
