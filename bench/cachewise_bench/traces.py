"""Reads recorded sessions: normalised traces (one JSON object per turn) and Claude Code's own logs.

A path is one file or a folder that is searched through; *.jsonl and *.jsonl.gz are read, and each
line says by its keys which of the two formats it has. A line that cannot be used is skipped and
reported as file:line: why.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachewise_bench import claude_code
from cachewise_bench.workload import CHARS_TO_TOKENS, Session, ToolCall, Turn, WorkloadError

SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_TOKENS = 100_000_000
"""More tokens than this in one turn are a broken line, not a long prompt."""


@dataclass(frozen=True)
class Traces:
    """What a path held."""

    sessions: tuple[Session, ...]
    broken_lines: tuple[str, ...]
    """file:line: why, one for each line that was skipped."""


def read_traces(path: Path) -> Traces:
    """Reads every trace file at or below path.

    Raises WorkloadError when the path does not exist, and when no turn can be read from it.
    """
    turns: dict[str, list[tuple[float, Turn]]] = {}
    logs = claude_code.LogReader()
    broken: list[str] = []
    for file in _trace_files(path):
        for where, text in _lines(file, broken):
            try:
                record = _object(text)
                if "turn" in record and "session" in record:
                    session = f"{file.name.split('.')[0]}/{record['session']}"
                    turns.setdefault(session, []).append((_number(record, "turn"), _turn(record)))
                elif "type" in record:
                    logs.add(str(file), record)
                else:
                    raise ValueError("neither a normalised turn nor a line of a Claude Code log")
            except (ValueError, TypeError, RecursionError) as error:
                broken.append(f"{where}: {error}")
    sessions = [
        Session(name, tuple(turn for _, turn in sorted(numbered, key=lambda pair: pair[0])))
        for name, numbered in turns.items()
    ]
    sessions += logs.sessions()
    if not sessions:
        detail = f"; {len(broken)} lines were unusable, the first: {broken[0]}" if broken else ""
        raise WorkloadError(f"{path}: no turns found in its {' and '.join(SUFFIXES)} files{detail}")
    return Traces(tuple(sessions), tuple(broken))


def _trace_files(path: Path) -> list[Path]:
    """The file itself, or all trace files below the folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise WorkloadError(f"{path}: no such file or folder")
    return sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())


def _lines(file: Path, broken: list[str]) -> Iterator[tuple[str, str]]:
    """("file:line", text) of each line that is not blank. What follows a defect in a compressed
    file is lost."""
    opener = gzip.open if file.name.endswith(".gz") else open
    number = 0
    try:
        with opener(file, "rt", encoding="utf-8-sig", errors="replace") as lines:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    yield f"{file}:{number}", text
    except (OSError, EOFError, zlib.error) as error:
        broken.append(f"{file}:{number + 1}: cannot be read further: {error}")


def _object(text: str) -> dict[str, object]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON object is expected, not {type(record).__name__}")
    return record


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
