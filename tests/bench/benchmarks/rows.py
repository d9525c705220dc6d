"""Rows of replays with sensible defaults."""

from __future__ import annotations

from typing import Any

from cachewise_bench.benchmarks.figures import RIVAL, Figures

DEFAULTS = {
    "session_time_mean_s": 100.0,
    "session_time_p99_s": 200.0,
    "request_p50_s": 5.0,
    "request_p99_s": 50.0,
    "request_max_s": 90.0,
    "max_wait_s": 80.0,
    "goodput_tok_s": 600.0,
    "recompute_ratio": 2.0,
    "hit_rate": 0.9,
    "evicted_blocks": 12_345,
    "preemptions": 0,
    "jain": 0.8,
    "scheduler_cpu_us_per_step": 300.0,
}


def row(policy: str, sessions: int = 20, kind: str = RIVAL, seed: int = 0, **more: float) -> Any:
    return {"policy": policy, "sessions": sessions, "seed": seed, "kind": kind} | DEFAULTS | more


def figures(*rows: Any) -> Figures:
    """All numbers of sessions have tables."""
    return Figures.of(rows, sorted({row["sessions"] for row in rows}))


NO_OFFLOAD = Figures.of((), ())
