"""The figures of a replay: one flat JSON object per policy, the same keys for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachewise_bench.replay import Outcome


def score(outcome: Outcome, sessions: int, seed: int, real_s: float) -> dict[str, Any]:
    """All metrics of one policy.

    session_time: the sum of a session's request latencies, its tools' time excluded (the paper's);
    session_wall: with it. Goodput counts new tokens: a recomputed one is none. recompute_ratio:
    computed tokens / new tokens. jain: Jain's index over the sessions' new tokens per second of
    session time; 1 is equal treatment. real_s and scheduler_cpu_us_per_step are this machine's.
    """
    requests = outcome.requests
    latencies = [r.latency_s for r in requests]
    ttft = [r.first_token_s - r.arrived_s for r in requests]
    every = len(outcome.session_walls_s)
    times, useful = np.zeros(every), np.zeros(every)
    for request in requests:
        times[request.session] += request.latency_s
        useful[request.session] += request.useful_tokens
    rates = useful / times
    return {
        "policy": outcome.policy,
        "sessions": sessions,
        "seed": seed,
        "session_time_mean_s": _rounded(np.mean(times)),
        **_quantiles("session_time", times, (50, 90, 99)),
        "session_wall_mean_s": _rounded(np.mean(outcome.session_walls_s)),
        **_quantiles("request", latencies, (50, 90, 99)),
        "request_max_s": _rounded(max(latencies)),
        **_quantiles("ttft", ttft, (50, 99)),
        "goodput_tok_s": _rounded(useful.sum() / outcome.makespan_s),
        "recompute_ratio": _rounded(outcome.computed_tokens / useful.sum()),
        "hit_rate": _rounded(
            sum(r.hit_tokens for r in requests) / sum(r.prompt_tokens for r in requests)
        ),
        "evicted_blocks": outcome.evicted_blocks,
        "refilled_blocks": outcome.refilled_blocks,
        "preemptions": sum(r.preemptions for r in requests),
        "max_wait_s": _rounded(max(r.admitted_s - r.arrived_s for r in requests)),
        "overtakes_max": max(r.overtakes for r in requests),
        "jain": _rounded(rates.sum() ** 2 / (every * (rates**2).sum())),
        "scheduler_cpu_us_per_step": _rounded(1e6 * outcome.scheduler_cpu_s / outcome.steps),
        "steps": outcome.steps,
        "real_s": _rounded(real_s),
    }


def _quantiles(
    name: str, values: Sequence[float] | Any, percents: Sequence[int]
) -> dict[str, float]:
    return {f"{name}_p{p}_s": _rounded(np.percentile(values, p)) for p in percents}


def _rounded(value: Any) -> float:
    return round(float(value), 4)
