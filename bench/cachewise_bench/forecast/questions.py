"""Questions that the paper leaves open, each answered with figures.

    samples     how many waits a new project needs: of its own, with other projects' or alone
    staleness   how fast a model goes stale: equally many waits of ever older weeks
    scope       the project's model, its source's (a person or a team), or everybody's
    fallback    what becomes of calls that fit no cluster
    arguments   what the arguments add over the tool's name, per tool
    unseen      each source forecast from the others alone, beside the tool's curve
    parts       what each level of the model, and the session's own waits, add

Models are the predictor's, without clusters, which take most of the time and change little
(docs/forecasting.md), but for `fallback` and a line of `parts`. Every question is asked with SEEDS
seeds of what is held out, and answered with the means.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from cachewise_predictor.calls import main_call, read_call
from cachewise_predictor.events import Interval
from cachewise_predictor.model import Model
from cachewise_predictor.quality import crps
from cachewise_predictor.train import build
from numpy.typing import NDArray

from cachewise_bench.forecast.intervals import split
from cachewise_bench.forecast.methods import Curves, by_model, by_tool, waits
from cachewise_bench.forecast.protocol import Forecasts, evaluate
from cachewise_bench.forecast.recorded import (
    WEEK_S,
    Recorded,
    by_session,
    by_source,
    intervals_of,
)

SEEDS = 4
SIZES = (0, 30, 100, 300, 1_000, 3_000)
LARGE = 1_500
"""Waits that a source needs to be asked about."""

LEAST_TESTED = 100
"""Waits of one kind that are worth figures of their own."""

LEVELS = ("limit", "program", "action", "command")
"""Of a model without clusters, below the kind of call."""

_HELD_OUT = 1 / 3


class Row(NamedTuple):
    """One line of an answer: what it is about, and the figures."""

    case: str
    variant: str
    figures: dict[str, float]


Answer = Iterator[Row]


def samples(recorded: Sequence[Recorded], seed: int) -> Answer:
    for source, own in _large(recorded):
        test, rest = _hold_out(own, seed)
        others = learn(intervals_of(one for one in recorded if one.source != source))
        for size in (size for size in SIZES if size <= len(rest)):
            first = intervals_of(rest[:size])
            for variant, model in (("with others'", others), ("alone", Model())):
                yield Row(source, f"{size} {variant}", judge(learn(first, model), test))


def staleness(recorded: Sequence[Recorded], seed: int) -> Answer:
    """The last week with enough waits is forecast from each week before it."""
    for source, own in _large(recorded):
        weeks = _by_week(own)
        last = max(week for week, found in weeks.items() if len(found) >= LEAST_TESTED)
        older = {w: found for w, found in weeks.items() if w < last and len(found) >= LEAST_TESTED}
        size = min(map(len, older.values()), default=0)
        for week in sorted(older, reverse=True):
            drawn = random.Random(seed).sample(older[week], size)
            figures = judge(learn(intervals_of(drawn)), intervals_of(weeks[last]), seed)
            yield Row(source, f"{size} waits, {last - week} weeks old", figures)


def scope(recorded: Sequence[Recorded], seed: int) -> Answer:
    projects = {(one.source, one.project) for one in recorded}
    for source, project in sorted(projects):
        own = [one for one in recorded if (one.source, one.project) == (source, project)]
        if len(own) < LEAST_TESTED * 3:
            continue
        test, rest = _hold_out(own, seed)
        held_out = {interval.key for interval in test}
        kept = [one for one in recorded if one.interval.key not in held_out]
        variants = {
            "project": intervals_of(rest),
            "source": intervals_of(one for one in kept if one.source == source),
            "all": intervals_of(kept),
        }
        for variant, train in variants.items():
            trained = {"trained": float(len(train))}
            yield Row(project, variant, trained | judge(learn(train), test, seed))


def fallback(recorded: Sequence[Recorded], seed: int) -> Answer:
    """Calls of kinds that have clusters, apart by whether theirs is one of them."""
    train, test = split(intervals_of(recorded), 0.8, seed)
    model, name_only = build(train), learn(without_arguments(train))

    def is_inside(interval: Interval) -> bool | None:
        call = main_call(interval.calls)
        clusters = model.clusters.get((interval.key.tenant, read_call(call).kind))
        return None if clusters is None else clusters.assign(call.arguments) is not None

    curves = by_model(model, test, has_evidence=False)
    plain = by_model(name_only, without_arguments(test), has_evidence=False)
    for case, wanted in (("in a cluster", True), ("in none", False), ("no clusters", None)):
        chosen = np.array([is_inside(interval) is wanted for interval in test])
        if not chosen.any():
            continue
        for variant, found in (("arguments", curves), ("tool's name", plain)):
            share = {"share": float(chosen.mean())}
            yield Row(case, variant, share | _figures(found, test, chosen, seed))


def arguments(recorded: Sequence[Recorded], seed: int) -> Answer:
    train, test = split(intervals_of(recorded), 0.8, seed)
    model, name_only = learn(train), learn(without_arguments(train))
    found = {
        "tool's name": by_model(name_only, without_arguments(test), has_evidence=False),
        "arguments": by_model(model, test, has_evidence=False),
        "and the session's waits": by_model(model, test),
    }
    kinds = np.array([read_call(main_call(interval.calls)).kind for interval in test])
    for kind in sorted(set(kinds.tolist())):
        chosen = kinds == kind
        if chosen.sum() >= LEAST_TESTED:
            for variant, curves in found.items():
                yield Row(kind, variant, _figures(curves, test, chosen, seed))


def unseen(recorded: Sequence[Recorded], seed: int) -> Answer:
    for source, own in by_source(recorded).items():
        test = intervals_of(own)
        train = intervals_of(one for one in recorded if one.source != source)
        for variant, found in (
            ("tool", by_tool(train, test)),
            ("ours", by_model(learn(train), test)),
        ):
            yield Row(source, variant, _all_figures(found, test, seed))


def parts(recorded: Sequence[Recorded], seed: int) -> Answer:
    """The model without one of its parts, or with clusters besides; the session's own waits, which
    are kept by kind, action and command, are another.
    """
    train, test = split(intervals_of(recorded), 0.8, seed)
    model = learn(train)
    curves = by_model(model, test)
    variants = {
        "all": curves,
        "no waits of the session": by_model(model, test, has_evidence=False),
        **{f"no {level}": by_model(_without(model, level), test) for level in LEVELS},
        "clusters besides": by_model(build(train), test),
        "plain mean": Curves(curves.log_survival, power=1),
    }
    for variant, found in variants.items():
        yield Row("parts", variant, _all_figures(found, test, seed))


QUESTIONS: dict[str, Callable[[Sequence[Recorded], int], Answer]] = {
    "samples": samples,
    "staleness": staleness,
    "scope": scope,
    "fallback": fallback,
    "arguments": arguments,
    "unseen": unseen,
    "parts": parts,
}


def learn(intervals: Sequence[Interval], model: Model | None = None) -> Model:
    """What `build` makes, without clusters; on top of a model, if there is one."""
    single = [i for i in intervals if len({c.name for c in i.calls}) <= 1]
    several = [i for i in intervals if len({c.name for c in i.calls}) > 1]
    return (model or Model()).learn(single).learn(several)


def judge(model: Model, test: Sequence[Interval], seed: int = 0) -> dict[str, float]:
    return _figures(by_model(model, test), test, np.ones(len(test), bool), seed)


def without_arguments(intervals: Sequence[Interval]) -> list[Interval]:
    """Scripts that call tools stay, as far as their kind goes."""
    return [
        replace(
            i,
            calls=tuple(call._replace(name=read_call(call).kind, arguments="") for call in i.calls),
        )
        for i in intervals
    ]


def mean_rows(asked: Sequence[Sequence[Row]]) -> list[Row]:
    """The means over the seeds, of the cases that all of them have."""
    by_name: dict[tuple[str, str], list[dict[str, float]]] = {}
    for rows in asked:
        for row in rows:
            by_name.setdefault((row.case, row.variant), []).append(row.figures)
    return [
        Row(*name, {key: float(np.mean([f[key] for f in figures])) for key in figures[0]})
        for name, figures in by_name.items()
        if len(figures) == len(asked)
    ]


def _without(model: Model, level: str) -> Model:
    kept = {g: row for g, row in model.rows.items() if not (g.part or "").startswith(f"{level} ")}
    return Model(kept)


def _all_figures(found: Forecasts, test: Sequence[Interval], seed: int) -> dict[str, float]:
    return {k: float(v or 0) for k, v in evaluate(found, waits(test), seed).items()}


def _figures(
    curves: Curves, test: Sequence[Interval], chosen: NDArray[np.bool_], seed: int
) -> dict[str, float]:
    """Of the chosen waits alone."""
    indices = np.flatnonzero(chosen)
    wait_s = waits([test[n] for n in indices])
    own = curves.subset(indices)
    found = evaluate(own, wait_s, seed)
    kept = ("just_started_top1", "just_started_concordance", "pit_ks", "coverage50", "coverage90")
    score = float(crps(own.log_survival, wait_s.tolist()).mean())
    return {"waits": float(len(indices)), "crps": score} | {k: float(found[k] or 0) for k in kept}


def _large(recorded: Sequence[Recorded]) -> Iterator[tuple[str, list[Recorded]]]:
    return ((name, own) for name, own in by_source(recorded).items() if len(own) >= LARGE)


def _hold_out(own: Sequence[Recorded], seed: int) -> tuple[list[Interval], list[Recorded]]:
    """A third of the sessions, and the waits of the others, session after session."""
    sessions = by_session(own)
    names = list(sessions)
    random.Random(seed).shuffle(names)
    cut = round(len(names) * _HELD_OUT)
    test = [one.interval for name in names[:cut] for one in sessions[name]]
    return test, [one for name in names[cut:] for one in sessions[name]]


def _by_week(own: Sequence[Recorded]) -> dict[int, list[Recorded]]:
    """Waits by the week in which their session began."""
    weeks: dict[int, list[Recorded]] = {}
    for session in by_session(own).values():
        weeks.setdefault(int(min(one.at for one in session) // WEEK_S), []).extend(session)
    return weeks
