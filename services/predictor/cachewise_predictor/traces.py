"""Trace files -> intervals, for the first model.

A trace is JSON Lines, plain or gzip, one LLM turn per line: `next` says what the session waited
for, `reuse_s` how long, and `tools` what was called, with `dur_q` for the trust in its times. Tool
waits count if every call was `measured` or has `stamps`; longer ones than MAX_TOOL_WAIT_S are
censored there (laptops sleep).
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachewise_proto.redaction import redact

from .errors import TraceError
from .events import Interval, SessionKey, ToolCall, Wait

MAX_TOOL_WAIT_S = 3_600.0
_TRUSTED = frozenset(("measured", "stamps"))


@dataclass
class TraceReport:
    """What was read. skipped: turns without a usable wait, by reason; broken: FILE:LINE: reason."""

    turns: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def find_traces(paths: list[Path]) -> list[Path]:
    """The files named, and those in the folders named. Raises TraceError if there is none."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(p for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
        elif path.is_file():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    if not files:
        raise TraceError(f"no *.jsonl or *.jsonl.gz in {', '.join(map(str, paths))}")
    return files


def read_trace(
    path: Path, tenant: str, report: TraceReport, on_bytes: Callable[[int], None]
) -> Iterator[Interval]:
    """The intervals of one file. on_bytes gets the size of the file part read so far."""
    try:
        with path.open("rb") as raw:
            lines = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(lines, 1):
                if number % 500 == 0:
                    on_bytes(raw.tell())
                yield from _read_line(line, f"{path}:{number}", tenant, report)
    except OSError as error:
        report.broken.append(f"{path}: {error}")
    except (EOFError, zlib.error) as error:
        report.broken.append(f"{path}: cut short or damaged: {error}")


def _read_line(line: bytes, place: str, tenant: str, report: TraceReport) -> Iterator[Interval]:
    if not line.strip():
        return
    try:
        interval = _to_interval(json.loads(line), tenant)
    except _Skipped as reason:
        report.turns += 1
        report.skipped[str(reason)] += 1
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        report.broken.append(f"{place}: {type(error).__name__}: {error}")
    else:
        report.turns += 1
        yield interval


class _Skipped(Exception):
    """A well-formed turn that tells nothing about a wait."""


def _to_interval(turn: dict[str, Any], tenant: str) -> Interval:
    after, seconds, tools = turn["next"], turn.get("reuse_s"), turn["tools"]
    calls = tuple(_to_call(tool) for tool in tools)
    key = SessionKey(tenant, str(turn["session"]))
    if after not in ("tool", "human"):
        raise _Skipped(f"next is {after}")
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise _Skipped("no wait")
    if after == "human":
        return Interval(key, str(turn["turn"]), Wait.HUMAN, (), float(seconds), True)
    if not calls or not all(tool.get("dur_q") in _TRUSTED for tool in tools):
        raise _Skipped("tool times not trusted")
    is_finished = seconds <= MAX_TOOL_WAIT_S
    seconds = min(float(seconds), MAX_TOOL_WAIT_S)
    return Interval(key, str(turn["turn"]), Wait.TOOL, calls, seconds, is_finished)


def _to_call(tool: dict[str, Any]) -> ToolCall:
    arguments = tool.get("args", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(tool["name"]), redact(arguments))
