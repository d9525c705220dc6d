"""The model for people: where a forecast comes from, and what the clusters are.

`explain` shows the levels of one call from the general to the special, each with the curve that
results from it and those before. `clusters` lists the clusters as the paper's Table 3 does.
"""

from __future__ import annotations

import numpy as np
from cachewise_proto.redaction import MAX_RAW_CHARS, redact

from . import survival
from .calls import call_from_text, read_call
from .clusters import MIN_SAMPLES
from .events import Source, ToolCall, Wait
from .model import PROBABILITIES, Group, Level, Model
from .survival import Floats

_PLOT_WIDTH, _PLOT_ROWS = 50, 12
_TERMS = 6


def explain(model: Model, tenant: str, tool: str, arguments: str) -> str:
    """The forecast of a call that begins now, and why.

    arguments: as the engine sees them, or a shell's command, of any length; redacted before use.
    """
    call = call_from_text(tool, redact(arguments[:MAX_RAW_CHARS]))
    levels = model.levels(tenant, Wait.TOOL, call)
    forecast = model.forecast(tenant, Wait.TOOL, (call,))
    parts = read_call(call)
    waits = ", ".join(f"P{q.probability * 100:.0f} {q.wait_s:,.2f} s" for q in forecast.quantiles)
    lines = [
        f"model {forecast.model_version}, tenant {tenant}",
        f"kind {parts.kind}; limit {parts.limit or '–'}; action {parts.action or '–'}",
        f"forecast: {waits}",
        f"source: {forecast.source.value}, {forecast.sample_count} intervals",
        "",
        _head("level"),
        *(_level_row(model, tenant, parts.kind, level) for level in levels),
        "",
        "share of the calls that take longer:",
        *_plot(survival.log_survival(levels[-1].hazard)),
    ]
    return "\n".join(map(_printable, lines))


def clusters(model: Model) -> str:
    """All clusters with their terms and waits, the largest kinds first."""
    lines = [_head("cluster")]
    kinds = sorted(model.clusters, key=lambda k: -model.row(Group(k[0], Wait.TOOL, k[1])).samples)
    for tenant, kind in kinds:
        found = model.clusters[tenant, kind]
        for number in range(len(found.centroids)):
            row = model.row(Group(tenant, Wait.TOOL, kind, f"cluster {number}"))
            waits = _own_waits(model, tenant, kind, number)
            terms = " ".join(found.terms(number, _TERMS))
            lines.append(_row(f"{tenant} {kind} {number}", row.samples, waits) + f"  {terms}")
    if len(lines) == 1:
        return (
            f"the model has no clusters: they need {MIN_SAMPLES} waits each of one tool's calls; "
            "`cachewise-predictor train` learns from recorded ones"
        )
    return "\n".join(map(_printable, lines))


def _own_waits(model: Model, tenant: str, kind: str, number: int) -> list[float]:
    """Quantiles of the cluster's curve, shrunk towards its kind's."""
    above = model.levels(tenant, Wait.TOOL, ToolCall(kind))[-1].hazard
    row = model.row(Group(tenant, Wait.TOOL, kind, f"cluster {number}"))
    return _quantiles(survival.hazards(row.finished, row.censored, above))


def _level_row(model: Model, tenant: str, kind: str, level: Level) -> str:
    text = _row(level.name[:34], level.samples, _quantiles(level.hazard))
    name, _, number = level.name.partition(" ")
    if level.source is Source.CLUSTER and name == "cluster":
        terms = model.clusters[tenant, kind].terms(int(number), _TERMS)
        text += "  " + " ".join(terms)
    return text


def _quantiles(hazard: Floats) -> list[float]:
    curve = survival.log_survival(hazard)
    return [survival.quantile(curve, probability) for probability in PROBABILITIES]


def _head(name: str) -> str:
    return f"{name:<34} {'n':>7} {'P50 s':>9} {'P90 s':>9} {'P99 s':>9}"


def _row(name: str, samples: int, waits: list[float]) -> str:
    return f"{name:<34} {samples:>7} " + " ".join(f"{wait:>9.2f}" for wait in waits)


def _printable(line: str) -> str:
    """Arguments and words come from models: no control characters for the terminal."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _plot(curve: Floats) -> list[str]:
    """A bar per time, long for much that is still to come."""
    times = np.geomspace(0.05, 3_600.0, _PLOT_ROWS)
    shares = [np.exp(survival.log_chance_over(curve, float(t))) for t in times]
    return [
        f"{time:>9.2f} s  {'█' * round(_PLOT_WIDTH * share):<{_PLOT_WIDTH}} {share:4.0%}"
        for time, share in zip(times, shares, strict=True)
    ]
