"""The command `import`: logs of agents -> one normalised trace file, for `train` and the bench."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..documents import json_items
from ..errors import TraceError
from ..records import OnBytes, Record, json_lines
from ..report import ReadReport
from .cachewise_traces import CacheWiseTraces
from .claude_code import ClaudeCode
from .codex import Codex
from .normalized import Normalized
from .opencode import OpenCode
from .turns import Reader, Skip, Turn, to_line

_BROKEN_SHOWN = 20


class Format(NamedTuple):
    """suffixes: of the files to take from a folder, beside their packed ones (.gz)."""

    reader: Callable[[], Reader]
    records: Callable[[Path, ReadReport, OnBytes], Iterator[Record]]
    suffixes: tuple[str, ...]


def _document(path: Path, report: ReadReport, on_bytes: OnBytes) -> Iterator[Record]:
    return json_items(path, "messages", report, on_bytes)


FORMATS = {
    "claude-code": Format(ClaudeCode, json_lines, (".jsonl",)),
    "codex": Format(Codex, json_lines, (".jsonl",)),
    "opencode": Format(OpenCode, _document, (".json",)),
    "normalized": Format(Normalized, json_lines, (".jsonl",)),
    "cachewise-traces": Format(CacheWiseTraces, _document, ("events.json",)),
}


@dataclass
class ImportReport(ReadReport):
    """turns: those written. waits: turns with tool calls by what they are worth."""

    trusted_waits: int = 0
    human_waits: int = 0
    qualities: Counter[str] = field(default_factory=Counter)
    """Calls by dur_q."""

    def count(self, turn: Turn) -> None:
        self.turns += 1
        self.trusted_waits += turn.is_trusted
        self.human_waits += turn.after == "human"
        self.qualities.update(call.quality[:20] for call in turn.calls)


def import_logs(name: str, paths: Sequence[Path], out: Path, console: Console) -> str:
    """Writes the trace file and gives a summary for people.

    name: of FORMATS. The file appears when it is whole. Raises TraceError if a path does not exist,
    nothing could be imported, or the file cannot be written.
    """
    files = find_logs(paths, FORMATS[name].suffixes)
    report = ImportReport()
    try:
        with _replacing(out) as file, _progress(files, console) as show:
            for turn in read_turns(FORMATS[name], files, report, show):
                file.write(to_line(turn) + "\n")
                report.count(turn)
            if not report.turns:
                raise TraceError(f"no turns in {len(files)} files: {_first_reason(report)}")
    except OSError as error:
        raise TraceError(f"{out}: {error.strerror or error}") from None
    for line in report.broken[:_BROKEN_SHOWN]:
        console.print(f"skipped {line}", markup=False, highlight=False, soft_wrap=True)
    return _summary(report, len(files), out)


def find_logs(paths: Sequence[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """The files named, and those with these suffixes below the folders named."""
    endings = (*suffixes, *(f"{suffix}.gz" for suffix in suffixes))
    files: list[Path] = []
    for path in (path.expanduser() for path in paths):
        if path.is_dir():
            files += sorted(p for p in path.rglob("*") if p.name.endswith(endings) and p.is_file())
        elif path.is_file():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    if not files:
        raise TraceError(f"no {' or '.join(endings)} in {', '.join(map(str, paths))}")
    return files


def read_turns(
    format: Format, files: Sequence[Path], report: ReadReport, show: Callable[[Path, int], None]
) -> Iterator[Turn]:
    """All turns of these files; what cannot be used goes into the report."""
    reader = format.reader()
    for path in files:
        reader.start(path)
        for place, record in format.records(path, report, partial(show, path)):
            try:
                yield from reader.take(record)
            except Skip as reason:
                report.skip(str(reason))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                report.add_broken(place, error)
        yield from reader.finish()
        show(path, path.stat().st_size)


_NOTHING_TO_LEARN = (
    "There is nothing to learn from here: the logs do not say that no person was asked before each "
    "tool ran, so their times may be a person's. Logs of sessions in a mode that never asks, such "
    "as Claude Code's bypassPermissions, or serving with the predictor give times that count."
)


@contextmanager
def _replacing(out: Path) -> Iterator[TextIO]:
    """A file beside `out` that takes its place at the end, or goes away after an error."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with gzip.open(part, "wt") if out.suffix == ".gz" else part.open("w") as file:
            yield file
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(files: Sequence[Path], console: Console) -> Iterator[Callable[[Path, int], None]]:
    """A bar over the bytes of all files, where somebody looks."""
    sizes = {path: path.stat().st_size for path in files}
    before = {path: sum(list(sizes.values())[:n]) for n, path in enumerate(sizes)}
    columns = (TextColumn("importing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("importing", total=sum(sizes.values()))
        yield lambda path, size: bar.update(task, completed=before[path] + size)


def _summary(report: ImportReport, files: int, out: Path) -> str:
    waits = f"{report.trusted_waits:,} for tools alone, {report.human_waits:,} for people"
    lines = [
        f"{report.turns:,} turns of {files:,} files in {out}",
        f"waits to learn from: {waits}",
        f"tool calls by what their times are worth: {_counts(report.qualities)}",
        f"left out: {_counts(report.skipped)}; broken: {report.broken_count:,}",
    ]
    if not report.trusted_waits and report.qualities["stamps_may_prompt"]:
        lines.append(_NOTHING_TO_LEARN)
    return "\n".join(lines)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts.most_common()) or "none"


def _first_reason(report: ReadReport) -> str:
    if report.broken:
        return f"{report.broken_count:,} broken records, the first {report.broken[0]}"
    return f"left out {_counts(report.skipped)}"
