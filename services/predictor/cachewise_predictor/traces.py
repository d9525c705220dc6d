"""Trace files -> intervals, for the first model.

A trace is JSON Lines, plain or gzip, one LLM turn per line: `next` says what the session waited
for, `reuse_s` how long, and `tools` what was called, with `dur_q` for the trust in its times. Tool
waits count if every call was `measured` or has `stamps`; longer ones than MAX_TOOL_WAIT_S are
censored there (laptops sleep).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cachewise_proto.redaction import redact

from .errors import TraceError
from .events import Interval, SessionKey, ToolCall, Wait
from .records import json_lines
from .report import ReadReport

MAX_TOOL_WAIT_S = 3_600.0
_TRUSTED = frozenset(("measured", "stamps"))


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
    path: Path, tenant: str, report: ReadReport, on_bytes: Callable[[int], None]
) -> Iterator[Interval]:
    """The intervals of one file. on_bytes gets the size of the file part read so far."""
    for place, turn in json_lines(path, report, on_bytes):
        try:
            interval = _to_interval(turn, tenant)
        except _Skipped as reason:
            report.turns += 1
            report.skip(str(reason))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            report.add_broken(place, error)
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
