"""Whether a new model may take the place of the serving one.

Both are judged on reserved intervals (window.py), which neither has learned from, but for those of
a tool that has changed since (drift.py). The new model is refused if

1. its mean CRPS (quality.py) is worse, by more than SLACK and more than a standard error;
2. it is worse by MUCH on what came before the serving model was trained, of tools that have not
   changed: a gain on new intervals does not pay for what was right and is lost;
3. the newest intervals of a tenant are random. Where waits are real, calls that were forecast to be
   longer mostly are, even if all of them are ten times slower now. So the concordance of forecasts
   and waits (Harrell's C: how many of the pairs are in the right order) is compared with what it
   would be if waits were drawn from the forecasts themselves. An order that the serving model does
   not know is fine if the new one has found it. Otherwise the tenant has spoiled the model: its
   newest intervals are to be left out, and nobody else has to wait.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import quality, survival
from .events import Position
from .model import Model
from .survival import Floats
from .window import Changes, Entry, LeftOut, is_outdated

SLACK, MUCH = 0.01, 0.05

NEWEST = 40
"""Intervals of a tenant that are looked at for their order: all since the serving model was
trained, but at least these. With fewer nobody is said to have spoiled anything.
"""

KEPT_ORDER, LOST_ORDER = 0.5, 0.15
"""Of the concordance above 1/2 so much must be left; and no more than so much may be missing."""

_LEAST_LEARNED = 20
_MOST_PAIRED = 400
_DRAWS = 3


class Judged(NamedTuple):
    """A reserved interval with the scores of both models."""

    entry: Entry
    serving_score: float
    score: float


@dataclass(frozen=True)
class Verdict:
    """refusal: why not; empty if the new model may serve. Scores: mean CRPS, lower is better; None
    if there was nothing to judge by.
    """

    refusal: str
    spoiled: tuple[LeftOut, ...] = ()
    score: float | None = None
    serving_score: float | None = None


def judge(
    candidate: Model,
    serving: Model,
    window: Sequence[Entry],
    trained_to: Position,
    position: Position,
    changes: Changes,
) -> Verdict:
    """window: in the order of the stream; trained_to, position: the last that was in the window
    when the serving and the new model were trained.
    """
    valid = [entry for entry in window if not is_outdated(entry, changes)]
    judged = _judge_each(candidate, serving, [entry for entry in valid if entry.is_reserved])
    if not judged:
        return Verdict("")
    known = [
        one for one in judged if one.entry.position <= trained_to and one.entry.group not in changes
    ]
    spoiled = _spoiled(candidate, serving, valid, trained_to, position)
    refusal = ""
    if spoiled:
        refusal = "spoiled by random waits"
    elif _is_worse(judged, SLACK):
        refusal = "worse on recent intervals"
    elif _is_worse(known, MUCH):
        refusal = "worse on intervals that were known"
    score = float(np.mean([one.score for one in judged]))
    serving_score = float(np.mean([one.serving_score for one in judged]))
    return Verdict(refusal, spoiled, score, serving_score)


def concordance(expected: Sequence[float], seconds: Sequence[float]) -> float:
    """The share of the pairs of waits that are in the expected order; equal expectations are half
    right, equal waits do not count. 1/2 if there is no pair.
    """
    before = np.sign(np.subtract.outer(expected, expected))
    after = np.sign(np.subtract.outer(seconds, seconds))
    pairs = np.triu(after != 0, 1)
    return float((1 + before * after)[pairs].mean() / 2) if pairs.any() else 0.5


def _is_worse(judged: Sequence[Judged], share: float) -> bool:
    if not judged:
        return False
    old = np.array([one.serving_score for one in judged])
    worse = np.array([one.score for one in judged]) - old
    error = float(worse.std()) / np.sqrt(len(worse))
    return bool(worse.mean() > max(share * old.mean(), error))


def _spoiled(
    candidate: Model,
    serving: Model,
    window: Sequence[Entry],
    trained_to: Position,
    position: Position,
) -> tuple[LeftOut, ...]:
    """Looks at all that the serving model has not learned."""
    of_tenant = defaultdict[str, list[Entry]](list)
    for entry in window:
        if entry.is_reserved or entry.position > trained_to:
            of_tenant[entry.interval.key.tenant].append(entry)
    parts = []
    for tenant, own in of_tenant.items():
        new = sum(entry.position > trained_to for entry in own)
        newest = own[-max(new, NEWEST) :]
        if len(newest) >= NEWEST and new and _is_random(newest[-_MOST_PAIRED:], candidate, serving):
            parts.append(LeftOut(tenant, trained_to, position))
    return tuple(parts)


def _is_random(newest: Sequence[Entry], candidate: Model, serving: Model) -> bool:
    """Whether these waits are in no order that either model knows."""
    curves = [_curve(serving, entry) for entry in newest]
    medians = [survival.quantile(curve, 0.5) for curve in curves]
    rng = np.random.default_rng(0)
    right = float(np.mean([concordance(medians, _draw(curves, rng)) for _ in range(_DRAWS)]))
    least = min(right - LOST_ORDER, 0.5 + KEPT_ORDER * (right - 0.5))
    if concordance(medians, _seconds(newest)) >= least:
        return False
    unseen = [entry for entry in newest if entry.is_reserved]
    learned = [survival.quantile(_curve(candidate, entry), 0.5) for entry in unseen]
    return len(unseen) < _LEAST_LEARNED or concordance(learned, _seconds(unseen)) < least


def _draw(curves: Sequence[Floats], rng: np.random.Generator) -> list[float]:
    """Waits that the curves are right about."""
    chances = rng.uniform(1e-9, 1 - 1e-9, len(curves))
    return [survival.quantile(c, float(p)) for c, p in zip(curves, chances, strict=True)]


def _seconds(entries: Sequence[Entry]) -> list[float]:
    return [entry.interval.seconds for entry in entries]


def _judge_each(candidate: Model, serving: Model, entries: Sequence[Entry]) -> list[Judged]:
    usable = [e for e in entries if quality.has_score(e.interval.seconds, e.interval.is_finished)]
    if not usable:
        return []
    serving_scores, scores = (
        quality.crps(np.array([_curve(model, entry) for entry in usable]), _seconds(usable))
        for model in (serving, candidate)
    )
    return list(map(Judged, usable, serving_scores.tolist(), scores.tolist()))


def _curve(model: Model, entry: Entry) -> Floats:
    interval = entry.interval
    return model.curve(interval.key.tenant, interval.wait, interval.calls)
