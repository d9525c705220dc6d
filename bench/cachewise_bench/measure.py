"""What a policy is judged by, from its requests, vLLM's events and our services' counters.

Recomputed tokens are counted from the clients' side: prompt tokens that
the session had in its context after its previous turn, and that were not hit now. (Some 20 of them
per turn are the end of that context, which does not fill a block.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from cachewise_bench.agents import Request
from cachewise_bench.watch import EvictionCount


@dataclass(frozen=True)
class PolicyResult:
    """The figures of one policy; the keys of its part of the JSON file."""

    session_time_mean_s: float
    """A session's time is the sum of its requests' latencies: tools and people not included."""
    session_time_p99_s: float
    session_wall_mean_s: float
    request_p50_s: float
    request_p99_s: float
    prefix_hit_rate: float | None
    """Share of the prompt tokens that were hit. This and the next two are None where the server
    does not tell."""
    evicted_blocks: int | None
    recomputed_tokens: int | None
    requests: int
    failed_requests: int
    tool_calls_emitted: int
    """Tool calls that the clients received."""
    tool_calls_reported: int | None
    """Tool calls that reached the predictor; None for stock, and if the predictor is gone."""
    forecasts_delivered: int | None
    """Forecasts that reached the scheduler; None for stock."""
    forecasts_expected: int
    """Turns that were answered: each opens an interval, and each interval has a forecast."""
    wall_s: float
    lost_events: int | None
    """Messages of vLLM's events that did not arrive; evictions in them are not counted. None where
    nobody listened."""


RATIO_KEYS = (
    "session_time_mean_s",
    "session_time_p99_s",
    "request_p50_s",
    "request_p99_s",
    "evicted_blocks",
    "recomputed_tokens",
)


def ratios(stock: PolicyResult, ours: PolicyResult) -> dict[str, float | None]:
    """stock ÷ ours, above 1 where ours is better; None where ours is 0."""
    pairs = {key: (asdict(stock)[key], asdict(ours)[key]) for key in RATIO_KEYS}
    return {key: round(a / b, 3) if a is not None and b else None for key, (a, b) in pairs.items()}


WORST_KEYS = ("failed_requests", "lost_events")
"""Faults: of several rounds the worst is shown, not the median."""


def medians(rounds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Per key the median of the rounds, or their worst if it counts faults.

    None where a round has None: what is not known once is not known. Counts stay whole numbers.
    """
    return {key: _middle(key, [figures[key] for figures in rounds]) for key in rounds[0]}


def _middle(key: str, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if key in WORST_KEYS:
        return max(known)
    middle = median(known)
    return round(middle) if all(isinstance(v, int) for v in known) else round(middle, 4)


def summarise(
    requests: Sequence[Request],
    events: EvictionCount | None,
    tool_calls_reported: int | None,
    forecasts_delivered: int | None,
) -> PolicyResult:
    """The figures of a run that has at least one request. events: None where nobody listened."""
    answered = [r for r in requests if not r.error]
    sessions: dict[str, list[Request]] = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(request)
    times = [sum(r.latency_s for r in turns) for turns in sessions.values()]
    walls = [
        turns[-1].started_s + turns[-1].latency_s - turns[0].started_s
        for turns in sessions.values()
    ]
    latencies = [r.latency_s for r in answered] or [0.0]
    are_hits_told = any(r.cached_tokens is not None for r in answered)
    return PolicyResult(
        session_time_mean_s=_rounded(np.mean(times)),
        session_time_p99_s=_rounded(np.percentile(times, 99)),
        session_wall_mean_s=_rounded(np.mean(walls)),
        request_p50_s=_rounded(np.percentile(latencies, 50)),
        request_p99_s=_rounded(np.percentile(latencies, 99)),
        prefix_hit_rate=_rounded(hit_rate(answered)) if are_hits_told else None,
        evicted_blocks=events.evicted_blocks if events else None,
        recomputed_tokens=sum(recomputed_tokens(turns) for turns in sessions.values())
        if are_hits_told
        else None,
        requests=len(requests),
        failed_requests=len(requests) - len(answered),
        tool_calls_emitted=sum(r.tool_calls for r in answered),
        tool_calls_reported=tool_calls_reported,
        forecasts_delivered=forecasts_delivered,
        forecasts_expected=len(answered),
        wall_s=_rounded(max(r.started_s + r.latency_s for r in requests)),
        lost_events=events.lost_messages if events else None,
    )


def hit_rate(requests: Sequence[Request]) -> float:
    """Share of their prompt tokens that were hit."""
    hit = sum(r.cached_tokens or 0 for r in requests)
    return hit / max(1, sum(r.prompt_tokens for r in requests))


def recomputed_tokens(turns: Sequence[Request]) -> int:
    """Prompt tokens of a session's requests, in order, that were computed before and again."""
    context, again = 0, 0
    for request in turns:
        if request.error:
            continue
        hit = request.cached_tokens or 0
        again += max(0, min(context, request.prompt_tokens) - hit)
        context = request.prompt_tokens + request.output_tokens
    return again


def _rounded(value: float | np.floating) -> float:
    return round(float(value), 4)
