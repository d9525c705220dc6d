"""The forecasts compared: from knowing nothing but the elapsed time to knowing the true waits.

    elapsed           the longer it has been away, the longer it will be (LRU)
    tool              a shrunk Kaplan-Meier curve per tool
    tool+word         ... and per program that it runs
    C20, C50, C100    ... and per cluster of its arguments, as in the paper
    infercept         mean of the session's last tool waits, less the elapsed time
    ours              the predictor's model
    oracle            the true wait

Methods with one curve per turn take that of the call that says most: a shell's, else the longest.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from cachewise_predictor import prior, survival
from cachewise_predictor.calls import main_call, read_call
from cachewise_predictor.clusters import Clusters
from cachewise_predictor.events import Interval, ToolCall
from cachewise_predictor.evidence import Recent, remember
from cachewise_predictor.model import Model
from cachewise_predictor.survival import BINS, GRID_S, TOLD
from cachewise_predictor.train import build

from cachewise_bench.forecast.protocol import Floats, Forecasts, Indices

Intervals = Sequence[Interval]
Method = Callable[[Intervals, Intervals], Forecasts]
Path = tuple[Hashable, ...]
"""From the general to the special: a node in a tree of curves."""

RECENT = 10
"""Waits that the moving average covers."""

_TOLD_S = GRID_S[TOLD]


@dataclass(frozen=True)
class Elapsed:
    def remaining(self, interval: Indices, elapsed_s: Floats) -> Floats:
        return elapsed_s

    def transform(self, wait_s: Floats) -> None:
        return None


@dataclass(frozen=True)
class Known:
    """A single number per interval."""

    expected_s: Floats

    def remaining(self, interval: Indices, elapsed_s: Floats) -> Floats:
        return self.expected_s[interval] - elapsed_s

    def transform(self, wait_s: Floats) -> None:
        return None


class Curves:
    """log_survival: one curve per interval, at the times of the predictor's grid.

    power: of the mean of remaining waits; 1 is the plain mean, as in the paper.
    """

    def __init__(self, log_survival: Floats, power: float) -> None:
        self.log_survival, self._power = log_survival, power
        self._curves, self._curve_of = np.unique(log_survival, axis=0, return_inverse=True)
        self._remaining = np.array([survival.remaining(c, power)[TOLD] for c in self._curves])

    def subset(self, interval: Indices) -> Curves:
        """The forecasts of these intervals alone."""
        return Curves(self.log_survival[interval], self._power)

    def remaining(self, interval: Indices, elapsed_s: Floats) -> Floats:
        """As the engine reads a forecast: linear between the points."""
        rows = self._remaining[self._curve_of[interval]]
        left = np.clip(np.searchsorted(_TOLD_S, elapsed_s, side="right") - 1, 0, len(_TOLD_S) - 2)
        share = (elapsed_s - _TOLD_S[left]) / (_TOLD_S[left + 1] - _TOLD_S[left])
        at = np.arange(len(rows))
        return np.asarray(rows[at, left] * (1 - share) + rows[at, left + 1] * share)

    def transform(self, wait_s: Floats) -> Floats:
        curves = self._curves[self._curve_of]
        passed = [survival.log_chance_over(c, w) for c, w in zip(curves, wait_s, strict=True)]
        return np.asarray(-np.expm1(np.array(passed)))


def elapsed(train: Intervals, test: Intervals) -> Forecasts:
    return Elapsed()


def oracle(train: Intervals, test: Intervals) -> Forecasts:
    return Known(waits(test))


def moving_average(train: Intervals, test: Intervals) -> Forecasts:
    """The mean of the training waits, until the session has a wait of its own."""
    recent: dict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
    start, expected = float(waits(train).mean()), []
    for interval in test:
        own = recent[interval.key]
        expected.append(sum(own) / len(own) if own else start)
        own.append(interval.seconds)
    return Known(np.array(expected))


def by_tool(train: Intervals, test: Intervals) -> Forecasts:
    return _tree(train, test, lambda call: (call.name,))


def by_tool_and_word(train: Intervals, test: Intervals) -> Forecasts:
    return _tree(train, test, lambda call: (call.name, read_call(call).program))


def by_cluster(most: int, train: Intervals, test: Intervals) -> Forecasts:
    texts: dict[str, list[str]] = defaultdict(list)
    for interval in train:
        call = main_call(interval.calls)
        texts[call.name].append(call.arguments)
    clusters = {tool: Clusters.fit(arguments, most) for tool, arguments in texts.items()}

    def path(call: ToolCall) -> Path:
        known = clusters.get(call.name)
        cluster = known.assign(call.arguments) if known else None
        return (call.name,) if cluster is None else (call.name, cluster)

    return _tree(train, test, path)


def ours(train: Intervals, test: Intervals) -> Forecasts:
    """The predictor's model."""
    return by_model(build(list(train)), test)


def by_model(model: Model, test: Intervals, has_evidence: bool = True) -> Curves:
    """has_evidence: the waits that a session has had count for its next ones."""
    recent: dict[Hashable, Recent] = defaultdict(tuple)
    curves = []
    for interval in test:
        own = recent[interval.key] if has_evidence else ()
        curves.append(model.curve(interval.key.tenant, interval.wait, interval.calls, own))
        recent[interval.key] = remember(own, interval.calls, interval.seconds)
    return Curves(np.array(curves), survival.POWER)


METHODS: dict[str, Method] = {
    "elapsed": elapsed,
    "tool": by_tool,
    "tool+word": by_tool_and_word,
    "C20": partial(by_cluster, 20),
    "C50": partial(by_cluster, 50),
    "C100": partial(by_cluster, 100),
    "infercept": moving_average,
    "ours": ours,
    "oracle": oracle,
}


def waits(intervals: Intervals) -> Floats:
    return np.array([interval.seconds for interval in intervals])


def _tree(train: Intervals, test: Intervals, path: Callable[[ToolCall], Path]) -> Curves:
    """Curves of a tree, each node's shrunk towards its parent's; the root's towards the prior."""
    finished: dict[Path, survival.Counts] = defaultdict(lambda: np.zeros(BINS, np.int64))
    censored: dict[Path, survival.Counts] = defaultdict(lambda: np.zeros(BINS + 1, np.int64))
    for interval in train:
        nodes = path(main_call(interval.calls))
        for depth in range(len(nodes) + 1):
            end = survival.finished_bin(interval.seconds) if interval.is_finished else None
            if end is None:
                censored[nodes[:depth]][survival.censored_bin(interval.seconds)] += 1
            else:
                finished[nodes[:depth]][end] += 1
    hazards: dict[Path, Floats] = {}

    def hazard(node: Path) -> Floats:
        if node not in hazards:
            parent = hazard(node[:-1]) if node else prior.OVERALL
            hazards[node] = survival.hazards(finished[node], censored[node], parent)
        return hazards[node]

    leaves = [path(main_call(interval.calls)) for interval in test]
    return Curves(np.array([survival.log_survival(hazard(leaf)) for leaf in leaves]), power=1)
