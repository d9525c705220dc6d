"""Forecasters that are wrong, each in its own way: what a bad forecast costs is measured with them.

They know the true wait, to be as wrong as can be; all give a curve that falls by a second a second.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from cachewise_engine_hook.policy import Forecast

from cachewise_bench.policies.base import Away

_LONG_S = 1000.0


class WrongWait:
    """wait_s: (session, the true wait in seconds, the one before it) to the wait that is told."""

    def __init__(self, wait_s: Callable[[str, float, float], float]) -> None:
        self._wait_s = wait_s
        self._last: dict[str, float] = {}

    def forecast(self, session: str, away: Away) -> Forecast:
        true_s = away.returns_at - away.since
        told_s = self._wait_s(session, true_s, self._last.get(session, 0.0))
        self._last[session] = true_s
        return Forecast((0.0, max(told_s, 1e-6)), (told_s, 0.0), "wrong")

    def returned(self, session: str, away: Away, waited_s: float) -> None:
        pass


def _random(session: str, true_s: float, last_s: float) -> float:
    """0.1 to 1,000 s, even in its logarithm; the same in each run."""
    share = zlib.crc32(f"{session}:{true_s}".encode()) / (1 << 32)
    return float(0.1 * 10_000**share)


WRONG_WAITS: dict[str, Callable[[str, float, float], float]] = {
    "reversed": lambda session, true_s, last_s: _LONG_S / (1 + true_s),
    "random": _random,
    "constant": lambda session, true_s, last_s: 10.0,
    "stale": lambda session, true_s, last_s: last_s,
}
"""reversed: who returns first is said to return last. stale: what was true a turn ago."""
