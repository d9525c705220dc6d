"""A session's own last waits, as evidence for its present one.

A session runs the same test suite again and again, on a machine that is fast or slow. So after the
model's curve come a few waits of the session itself, each level shrunk towards the one before:

    same kind and limit  ->  same action  ->  same command

A remembered wait is spread a little over the neighbouring bins of the grid: the next run of a
command takes about as long, not exactly. Bounded: RECENT waits per session, two per command.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from . import survival
from .calls import main_call, read_call
from .events import ToolCall
from .survival import BINS, Floats

RECENT = 64

_LEVELS = ((0, 3, 5.0), (1, 3, 2.0), (2, 2, 0.75))
"""Index of the key, newest waits taken, and weight of the level before. From held-out sessions."""

_COMMAND, _PER_COMMAND = 2, 2

_MAX_REMEMBERED = 8_192
"""Calls whose keys were made last."""

_SPREAD = (0.1, 0.8, 0.1)


class PastWait(NamedTuple):
    """keys: checksums of 16 bits of (kind, limit), (kind, action), (kind, command)."""

    keys: tuple[int, int, int]
    seconds: float


Recent = tuple[PastWait, ...]
"""Oldest first."""


def remember(recent: Recent, calls: tuple[ToolCall, ...], seconds: float) -> Recent:
    """recent with one more wait, and without the oldest over the bounds."""
    new = PastWait(_keys(calls), seconds)
    same = [wait for wait in recent if wait.keys[_COMMAND] == new.keys[_COMMAND]]
    surplus = same[: -_PER_COMMAND + 1]
    kept = tuple(wait for wait in recent if wait not in surplus) if surplus else recent
    return (*kept, new)[-RECENT:]


def relevant(recent: Recent, calls: tuple[ToolCall, ...]) -> Recent:
    """Those that say something about these calls."""
    if not recent:
        return recent
    a, b, c = _keys(calls)
    return tuple([w for w in recent if (keys := w.keys)[0] == a or keys[1] == b or keys[2] == c])


def sharpen(hazard: Floats, recent: Recent, calls: tuple[ToolCall, ...]) -> Floats:
    """The hazards of a wait for these calls, after those of the model."""
    keys = _keys(calls)
    for level, most, kappa in _LEVELS:
        key = keys[level]
        waits = [seconds for past, seconds in recent if past[level] == key]
        if waits:
            hazard = survival.hazards(*_spread(waits[-most:]), hazard, kappa)
    return hazard


@lru_cache(_MAX_REMEMBERED)
def _keys(calls: tuple[ToolCall, ...]) -> tuple[int, int, int]:
    parts = read_call(main_call(calls))
    return (
        _checksum(parts.kind, parts.limit),
        _checksum(parts.kind, parts.action),
        _checksum(parts.kind, parts.command),
    )


def _checksum(kind: str, part: str) -> int:
    return zlib.crc32(f"{kind}\n{part}".encode("utf-8", "surrogatepass")) & 0xFFFF


def _spread(waits: list[float]) -> tuple[Floats, Floats]:
    """Finished and censored waits per bin, for survival.hazards."""
    finished, censored = np.zeros(BINS), np.zeros(BINS + 1)
    for seconds in waits:
        end = survival.finished_bin(seconds)
        if end is None:
            censored[survival.censored_bin(seconds)] += 1
            continue
        for step, weight in enumerate(_SPREAD, start=-1):
            finished[min(max(end + step, 0), BINS - 1)] += weight
    return finished, censored
