"""What the sessions of the load wait for: recorded tool waits, or synthetic ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, cycle, islice
from pathlib import Path

from cachewise_predictor.events import Interval, SessionKey, ToolCall, Wait
from cachewise_proto.redaction import MAX_RAW_CHARS, redact

from cachewise_bench.forecast.intervals import read_intervals
from cachewise_bench.synthetic import synthetic_sessions

TENANT = "default"
TURNS_PER_SESSION = 20
_SESSIONS_AT_A_TIME = 50


def tool_waits(traces: str | None, size: int) -> list[Interval]:
    """`size` of them, repeated if the traces have fewer. traces: PATH[,PATH], None: synthetic."""
    if traces is None:
        return _synthetic(size)
    found, _ = read_intervals([Path(path) for path in traces.split(",") if path])
    return list(islice(cycle(found), size))


def write_traces(intervals: Sequence[Interval], path: Path) -> None:
    """A trace for `train`, in which every wait is another turn."""
    with path.open("w") as file:
        for number, interval in enumerate(intervals):
            calls = [
                {"name": call.name, "args": call.arguments, "dur_q": "measured"}
                for call in interval.calls
            ]
            line = {
                "session": f"s{number // TURNS_PER_SESSION}",
                "turn": number % TURNS_PER_SESSION,
                "tools": calls,
                "next": "tool",
                "reuse_s": interval.seconds,
            }
            file.write(json.dumps(line) + "\n")


def _synthetic(size: int) -> list[Interval]:
    intervals: list[Interval] = []
    for seed in count():
        for session in synthetic_sessions(_SESSIONS_AT_A_TIME, seed):
            key = SessionKey(TENANT, session.name)
            for number, turn in enumerate(session.turns):
                calls = tuple(
                    ToolCall(call.name, redact(call.arguments[:MAX_RAW_CHARS]))
                    for call in turn.tool_calls
                )
                if calls:
                    intervals.append(
                        Interval(key, str(number), Wait.TOOL, calls, turn.wait_s, True)
                    )
        if len(intervals) >= size:
            break
    return intervals[:size]
