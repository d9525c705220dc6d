"""`cachewise-predictor train`: builds a model from trace files and makes it the current one.

A running predictor on the same store adopts it within seconds. The trainer goes on from there: the
newest of the waits are in its window, until those of live sessions have taken their place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TextIO

from .errors import TraceError
from .events import Interval, Wait
from .model import Model
from .model_file import from_bytes, to_bytes
from .published import ModelInfo, Pointer
from .report import ReadReport
from .store import Store
from .traces import find_traces, read_trace
from .web import summarise

TENANT = "default"
"""Engines that set no tenant belong to this one."""

_MOST_BROKEN_SHOWN = 20
_MOST_GROUPS_SHOWN = 15


async def train(paths: list[Path], store: Store) -> str:
    """Reads the traces, stores the model, and gives a summary for people.

    Raises TraceError if there is nothing to learn from, StoreError if the store does not answer.
    """
    await store.ping()
    report = ReadReport()
    intervals = list(_read(find_traces(paths), report, sys.stderr))
    _show_broken(report, sys.stderr)
    if not intervals:
        raise TraceError(f"no usable waits in {report.turns} turns: {_skipped(report)}")
    model = build(intervals)
    await store.append_recorded(intervals)
    previous, position = await store.pointer(), await store.last_position()
    after = previous.generation if previous else None
    pointer = Pointer(model.version, (after or 0) + 1, position)
    info = ModelInfo("traces", time.time(), position)
    if not await store.publish_model(pointer, to_bytes(model), info, after):
        raise TraceError("another training stored its model meanwhile: train again")
    return summary(model, report)


async def load_current(store: Store) -> Model:
    """The model that serves; an empty one if there is none yet. Raises ModelError, StoreError."""
    pointer = await store.pointer()
    return Model() if pointer is None else from_bytes(await store.load_model(pointer.version))


def build(intervals: list[Interval]) -> Model:
    """Clusters, then counts.

    A turn with several calls counts for the slowest: to know it takes a model of the others.
    """
    single = [i for i in intervals if len({c.name for c in i.calls}) <= 1]
    several = [i for i in intervals if len({c.name for c in i.calls}) > 1]
    return Model.fit(intervals).learn(single).learn(several)


def summary(model: Model, report: ReadReport) -> str:
    """What was read, and the largest curves."""
    lines = [
        f"model {model.version}: {model.samples} waits from {report.turns} turns",
        f"skipped: {_skipped(report)}; broken lines: {report.broken_count}",
        f"{'wait':<8} {'tool':<24} {'n':>7} {'P50 s':>9} {'P90 s':>9} {'P99 s':>9}",
    ]
    groups = [g for g in summarise(model) if g.tenant is not None]
    for group in groups[:_MOST_GROUPS_SHOWN]:
        tool = group.tool or ("(all)" if group.wait == Wait.TOOL.value else "")
        waits = f"{group.p50_s:>9.2f} {group.p90_s:>9.2f} {group.p99_s:>9.2f}"
        lines.append(f"{group.wait:<8} {tool[:24]:<24} {group.n:>7} {waits}")
    return "\n".join(lines)


def _read(files: list[Path], report: ReadReport, out: TextIO) -> Iterator[Interval]:
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        show = partial(_show_progress, out, total, done)
        yield from read_trace(path, TENANT, report, show)
        done += path.stat().st_size
        _show_progress(out, total, done)
    if out.isatty():
        out.write("\n")


def _show_progress(out: TextIO, total: int, before: int, in_file: int = 0) -> None:
    """One line that is written over; nothing where nobody looks."""
    if out.isatty():
        share = (before + in_file) / max(total, 1)
        out.write(f"\rreading traces [{'#' * int(30 * share):<30}] {share:4.0%}")
        out.flush()


def _show_broken(report: ReadReport, out: TextIO) -> None:
    for line in report.broken[:_MOST_BROKEN_SHOWN]:
        out.write(f"skipped {line}\n")
    if (rest := report.broken_count - _MOST_BROKEN_SHOWN) > 0:
        out.write(f"skipped {rest} more broken lines\n")


def _skipped(report: ReadReport) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in report.skipped.most_common()) or "none"
