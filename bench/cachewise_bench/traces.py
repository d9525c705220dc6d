"""Reads recorded sessions: normalised traces (one JSON object per turn) and Claude Code's own logs.

A path is one file or a folder that is searched through; *.jsonl and *.jsonl.gz are read, and each
line says by its keys which of the two formats it has. A line that cannot be used is skipped and
reported as file:line: why.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachewise_predictor.importers import turns as imported
from cachewise_predictor.importers.claude_code import ClaudeCode
from cachewise_predictor.records import json_lines
from cachewise_predictor.report import ReadReport

from cachewise_bench.workload import CHARS_TO_TOKENS, Session, ToolCall, Turn, WorkloadError

SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_TOKENS = 100_000_000
"""More tokens than this in one turn are a broken line, not a long prompt."""

_Sessions = dict[str, list[tuple[float, Turn]]]
"""Numbered turns by the session's name."""


@dataclass(frozen=True)
class Traces:
    """What a path held."""

    sessions: tuple[Session, ...]
    broken_lines: tuple[str, ...]
    """file:line: why, of the lines that were skipped (the first thousand)."""


def read_traces(path: Path) -> Traces:
    """Reads every trace file at or below path.

    Raises WorkloadError when the path does not exist, and when no turn can be read from it.
    """
    sessions: _Sessions = {}
    logs, report = ClaudeCode(), ReadReport()
    for file in _trace_files(path):
        logs.start(file)
        for where, record in json_lines(file, report, lambda size: None):
            try:
                _take(record, file, logs, sessions)
            except imported.Skip as reason:
                report.skip(str(reason))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                report.add_broken(where, error)
        for turn in logs.finish():
            _add_logged(turn, sessions)
    if not sessions:
        message = f"{path}: no turns found in its {' and '.join(SUFFIXES)} files"
        if report.broken:
            message += f"; {report.broken_count} lines were unusable, the first: {report.broken[0]}"
        raise WorkloadError(message)
    ordered = (
        Session(name, tuple(turn for _, turn in sorted(numbered, key=lambda pair: pair[0])))
        for name, numbered in sessions.items()
    )
    return Traces(tuple(ordered), tuple(report.broken))


def _take(record: dict[str, Any], file: Path, logs: ClaudeCode, sessions: _Sessions) -> None:
    if "turn" in record and "session" in record:
        name = f"{file.name.split('.')[0]}/{record['session']}"
        numbered = (_number(record, "turn"), _turn(record))
        sessions.setdefault(name, []).append(numbered)
    elif "type" in record:
        for turn in logs.take(record):
            _add_logged(turn, sessions)
    else:
        raise ValueError("neither a normalised turn nor a line of a Claude Code log")


def _add_logged(turn: imported.Turn, sessions: _Sessions) -> None:
    """Adds a turn of an agent's log."""
    output = turn.output_tokens
    calls = [ToolCall(c.name, c.arguments, c.seconds or 0.0) for c in turn.calls]
    made = Turn.recorded(
        prompt_tokens=turn.prompt_tokens,
        output_tokens=CHARS_TO_TOKENS * turn.output_chars if output is None else output,
        tool_calls=calls,
        wait_s=turn.reuse_s or 0.0,
    )
    sessions.setdefault(turn.session, []).append((turn.number, made))


def _trace_files(path: Path) -> list[Path]:
    """The file itself, or all trace files below the folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise WorkloadError(f"{path}: no such file or folder")
    return sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())


def _turn(record: dict[str, object]) -> Turn:
    """A turn of the normalised format; its keys are in the module's tests and in the README of the
    traces."""
    calls = record.get("tools") or []
    if not isinstance(calls, list):
        raise ValueError("tools is not a list")
    tool_calls = tuple(_tool_call(call) for call in calls) if record.get("next") == "tool" else ()
    output = _number(record, "output_tokens", 0, most=MAX_TOKENS)
    if not output:  # The log kept only the stream's start.
        output = CHARS_TO_TOKENS * _number(record, "output_chars", 125, most=MAX_TOKENS)
    return Turn.recorded(
        prompt_tokens=_number(record, "prompt_tokens", least=1, most=MAX_TOKENS),
        output_tokens=output,
        tool_calls=tool_calls,
        wait_s=_number(record, "reuse_s", 0, least=-math.inf),
    )


def _tool_call(call: object) -> ToolCall:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("a tool call has no name")
    arguments = call.get("args", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], text, _number(call, "dur", 0, least=-math.inf))


def _number(
    record: dict[str, object],
    key: str,
    default: float | None = None,
    least: float = 0,
    most: float = math.inf,
) -> float:
    """record[key] as a finite number in [least, most]; null and a missing key give the default, if
    there is one."""
    value = record.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {'missing' if value is None else 'not a number'}")
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{key} is out of range: {value}")
    return value
