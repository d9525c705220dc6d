"""The tool waits of trace files, in the order of the files, and their split by session."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cachewise_predictor.errors import TraceError
from cachewise_predictor.events import Interval, SessionKey, Wait
from cachewise_predictor.report import ReadReport
from cachewise_predictor.traces import find_traces, read_trace

from cachewise_bench.workload import WorkloadError


def read_intervals(paths: Sequence[Path]) -> tuple[list[Interval], ReadReport]:
    """Waits for tools whose times can be trusted; sessions are named FILE/SESSION.

    Raises WorkloadError if there is none.
    """
    report, intervals = ReadReport(), list[Interval]()
    try:
        files = find_traces([path.expanduser() for path in paths])
    except TraceError as error:
        raise WorkloadError(str(error)) from None
    for file in files:
        source = file.name.split(".")[0]
        for interval in read_trace(file, "default", report, lambda size: None):
            if interval.wait is Wait.TOOL:
                key = SessionKey(interval.key.tenant, f"{source}/{interval.key.session}")
                intervals.append(replace(interval, key=key))
    if not intervals:
        raise WorkloadError(f"{', '.join(map(str, paths))}: no tool waits with trusted times")
    return intervals, report


def split(
    intervals: Sequence[Interval], share: float, seed: int
) -> tuple[list[Interval], list[Interval]]:
    """This share of the sessions to train on, and the rest to test."""
    sessions = list(dict.fromkeys(interval.key for interval in intervals))
    random.Random(seed).shuffle(sessions)
    chosen = set(sessions[: round(share * len(sessions))])
    train = [interval for interval in intervals if interval.key in chosen]
    test = [interval for interval in intervals if interval.key not in chosen]
    if not train or not test:
        raise WorkloadError(f"{len(sessions)} sessions cannot be split at {share}")
    return train, test
