"""The CacheWise paper's forecast (2606.16824): curves of clusters of a tool's arguments.

    TF-IDF of the arguments, at most 5,000 features     per tool
    MiniBatchKMeans, up to C clusters                   of at least 30 samples on average
    Kaplan-Meier curve of the waits                     per cluster
    forecast at elapsed time t                          E[T - t | T > t] = area beyond t / S(t)

Open in the paper: how parallel calls share one wait (the call with the longest forecast speaks for
the turn here, and all calls are trained with the turn's wait), unknown tools (all tools together
here), and times beyond the end of a curve, where its formula gives 0: the session counts as due.
Waits at the log's clip are censored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.feature_extraction.text import TfidfVectorizer

from cachewise_bench.workload import MAX_WAIT_S, ToolCall, Turn

MAX_FEATURES = 5_000
MIN_SAMPLES = 30
_MAX_CHARS = 400


@dataclass(frozen=True, eq=False)
class Curve:
    """A survival curve: ascending times, S just after each, and the area under S beyond each."""

    times_s: NDArray[np.float64]
    survival: NDArray[np.float64]
    area_s: NDArray[np.float64]

    @classmethod
    def kaplan_meier(cls, waits_s: Iterable[float]) -> Curve:
        """Waits at MAX_WAIT_S have not ended when they were last seen."""
        waits = np.array(sorted(waits_s))
        times, starts, counts = np.unique(waits, return_index=True, return_counts=True)
        ended = np.where(times < MAX_WAIT_S, counts, 0)
        survival = np.concatenate(([1.0], np.cumprod(1 - ended / (len(waits) - starts))))
        times = np.concatenate(([0.0], times))
        pieces = survival[:-1] * np.diff(times)
        area = np.concatenate((np.cumsum(pieces[::-1])[::-1], [0.0]))
        return cls(times, survival, area)

    def remaining_s(self, elapsed_s: float) -> float:
        """E[T - t | T > t], and 0 beyond the last time."""
        elapsed_s = max(elapsed_s, 0.0)  # A step's ranks can be older than the wait.
        if elapsed_s >= self.times_s[-1]:
            return 0.0
        i = int(np.searchsorted(self.times_s, elapsed_s, "right")) - 1
        survival = self.survival[i]
        return float(self.area_s[i] / survival - (elapsed_s - self.times_s[i]))


@dataclass(frozen=True, eq=False)
class _Tool:
    vectorizer: Any
    clusters: Any
    curves: list[Curve]


@dataclass(frozen=True, eq=False)
class ClusterCurves:
    """The curves of all tools."""

    tools: dict[str, _Tool]
    all_tools: Curve
    _known: dict[ToolCall, Curve] = field(default_factory=dict, repr=False)

    @classmethod
    def fit(cls, turns: Iterable[Turn], count: int) -> ClusterCurves:
        samples: dict[str, list[tuple[str, float]]] = defaultdict(list)
        waits: list[float] = []
        for turn in turns:
            waits += [turn.wait_s] if turn.tool_calls else []
            for call in turn.tool_calls:
                samples[call.name].append((_text(call), turn.wait_s))
        tools = {name: _fit_tool(found, count) for name, found in samples.items()}
        return cls(tools, Curve.kaplan_meier(waits or [0.0]))

    def curve(self, calls: Iterable[ToolCall]) -> Curve:
        """Of the call that is expected to take longest."""
        return max(map(self._of_call, calls), key=lambda curve: curve.remaining_s(0.0))

    def _of_call(self, call: ToolCall) -> Curve:
        if call not in self._known:
            tool = self.tools.get(call.name)
            self._known[call] = self.all_tools if tool is None else _nearest(tool, call)
        return self._known[call]


def _fit_tool(samples: list[tuple[str, float]], count: int) -> _Tool:
    texts = [text for text, _ in samples]
    clusters = max(1, min(count, len(samples) // MIN_SAMPLES, len(set(texts))))
    vectorizer = TfidfVectorizer(max_features=MAX_FEATURES, token_pattern=r"[\w./-]+")
    kmeans = MiniBatchKMeans(clusters, random_state=0, n_init=3)
    labels = kmeans.fit_predict(vectorizer.fit_transform(texts))
    waits: dict[int, list[float]] = defaultdict(list)
    for label, (_, wait_s) in zip(labels.tolist(), samples, strict=True):
        waits[label].append(wait_s)
    everything = [wait_s for _, wait_s in samples]
    curves = [Curve.kaplan_meier(waits.get(i) or everything) for i in range(clusters)]
    return _Tool(vectorizer, kmeans, curves)


def _nearest(tool: _Tool, call: ToolCall) -> Curve:
    return tool.curves[int(tool.clusters.predict(tool.vectorizer.transform([_text(call)]))[0])]


def _text(call: ToolCall) -> str:
    """The name is in every text of the tool, so that none is without a word."""
    return f"{call.name} tool {call.arguments[:_MAX_CHARS]}"
