"""Which sessions a replay replays, and which it learns from."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cachewise_bench.argument_types import positive_number
from cachewise_bench.synthetic import synthetic_sessions
from cachewise_bench.traces import read_traces
from cachewise_bench.workload import Session, WorkloadError

TRAIN_SHARE = 0.8
SPLIT_SEED = 7
CUT_PAUSE_S = 0.5
"""A human pause under --human cut: the session goes on at once, as in the known results."""

SYNTHETIC_PER_SESSION = 5
"""Synthetic sessions to draw from, for each that is replayed."""


def read_sessions(paths: str, most: int, seed: int, console: Console) -> list[Session]:
    """The sessions of trace files or folders, separated by commas; `synthetic` among them stands
    for SYNTHETIC_PER_SESSION times most synthetic ones. Raises WorkloadError."""
    sessions: list[Session] = []
    for path in paths.split(","):
        if path == "synthetic":
            sessions += synthetic_sessions(SYNTHETIC_PER_SESSION * most, seed)
            continue
        traces = read_traces(Path(path).expanduser())
        for line in traces.broken_lines[:5]:
            console.print(f"skipped {line}", style="yellow", markup=False, highlight=False)
        sessions += traces.sessions
    names = Counter(session.name for session in sessions)
    if twice := [name for name, count in names.items() if count > 1]:
        raise WorkloadError(f"session {twice[0]} is twice in {paths}")
    return sessions


def split_for_training(sessions: Sequence[Session]) -> tuple[list[Session], list[Session]]:
    """The paper's split by session: what to learn from, and what to replay."""
    found = sorted(sessions, key=lambda session: session.name)
    random.Random(SPLIT_SEED).shuffle(found)
    share = int(TRAIN_SHARE * len(found))
    return found[:share], found[share:]


def pause_rule(text: str) -> float:
    """The longest human pause in seconds that --human allows; 0 for cut."""
    kind, _, seconds = text.partition(":")
    try:
        if kind == "cap":
            return positive_number(seconds)
    except ValueError:
        pass
    if text in ("cut", "keep"):
        return 0.0 if text == "cut" else float("inf")
    raise WorkloadError(f"--human is cut, keep or cap:SECONDS, not {text!r}")


def with_pauses(session: Session, longest_s: float) -> Session:
    """The session with no human pause above longest_s, as pause_rule gives it."""
    pause_s = longest_s or CUT_PAUSE_S
    turns = (
        turn if turn.tool_calls else replace(turn, wait_s=min(turn.wait_s, pause_s))
        for turn in session.turns
    )
    return replace(session, turns=tuple(turns))
