"""Tool waits with the project and the time at which they were recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cachewise_predictor.events import Interval, SessionKey
from cachewise_predictor.records import json_lines
from cachewise_predictor.report import ReadReport
from cachewise_predictor.traces import find_traces

from cachewise_bench.forecast.intervals import read_intervals

WEEK_S = 7 * 86_400.0


class Recorded(NamedTuple):
    """source: the trace file, one team's or person's sessions; at: epoch seconds of the turn's
    end.
    """

    interval: Interval
    source: str
    project: str
    at: float


def read_recorded(paths: Sequence[Path]) -> list[Recorded]:
    """As read_intervals, in the same order. Raises WorkloadError if there is no wait."""
    intervals, _ = read_intervals(paths)
    turns: dict[tuple[str, str], tuple[str, float]] = {}
    for file in find_traces([path.expanduser() for path in paths]):
        source = file.name.split(".")[0]
        for _, turn in json_lines(file, ReadReport(), lambda size: None):
            place = f"{source}/{turn.get('session')}", str(turn.get("turn"))
            turns[place] = str(turn.get("project") or ""), float(turn.get("t_response_end") or 0)
    return [
        Recorded(i, i.key.session.split("/")[0], *turns[i.key.session, i.turn]) for i in intervals
    ]


def by_source(recorded: Iterable[Recorded]) -> dict[str, list[Recorded]]:
    """The largest first."""
    found: dict[str, list[Recorded]] = defaultdict(list)
    for one in recorded:
        found[one.source].append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def by_session(recorded: Iterable[Recorded]) -> dict[SessionKey, list[Recorded]]:
    found: dict[SessionKey, list[Recorded]] = defaultdict(list)
    for one in recorded:
        found[one.interval.key].append(one)
    return found


def intervals_of(recorded: Iterable[Recorded]) -> list[Interval]:
    return [one.interval for one in recorded]
