"""The command `benchmarks`: replays all policies and writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cachewise_bench.argument_types import seeds, whole_number, whole_numbers
from cachewise_bench.benchmarks.conditions import CONTEXT_CAP, TURN_CAP, conditions
from cachewise_bench.benchmarks.figures import EXPERIMENT, ORACLE, PRODUCT, RIVAL, Figures
from cachewise_bench.benchmarks.page import page
from cachewise_bench.benchmarks.plots import write_plots
from cachewise_bench.cost_model import Hardware
from cachewise_bench.replay_command import PAPER_CHUNK, PRESETS
from cachewise_bench.replay_runs import Plan, replay_all
from cachewise_bench.replayed_sessions import (
    pause_rule,
    read_sessions,
    split_for_training,
    with_pauses,
)
from cachewise_bench.workload import Session, WorkloadError, choose_sessions, with_subagents

EPILOG = """examples:
  cachewise-bench benchmarks --traces traces/
      all policies with 20 and 40 sessions, some with 5 to 40; an hour of one core
  cachewise-bench benchmarks --traces traces/ --resume
      goes on where the last run was stopped, with what it has left in docs/benchmarks.json
  cachewise-bench benchmarks --figures docs/benchmarks.json
      writes the page again from the figures of the last run
"""

CURVE_POLICIES = (
    "vllm",
    "vllm-prefix",
    "cachewise-c100",
    "continuum",
    "thunder",
    "ours-no-forecast",
    "ours",
)

OFFLOAD_GIB = 256.0
"""Host memory for evicted blocks: 1.4 times the pool of the paper's hardware; it does not say how
much it had."""

OFFLOAD_POLICIES = ("vllm", "vllm-prefix", "cachewise-c100", "ours")


def add_parser(commands: Any) -> None:
    """Adds `benchmarks` to the command line."""
    parser = commands.add_parser(
        "benchmarks",
        help="make docs/benchmarks.md: tables, plots and the bad news",
        description="Replays every policy in the paper's set-up and writes a page about it, with "
        "its figures in a JSON file and its plots beside it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    for name, options in (
        (
            "--traces",
            {
                "default": "synthetic",
                "metavar": "PATH[,PATH]",
                "help": "80 %% of the sessions are learned from, the rest is replayed [synthetic]",
            },
        ),
        ("--out", {"type": Path, "default": Path("docs/benchmarks.md"), "metavar": "FILE"}),
        ("--preset", {"choices": list(PRESETS), "default": "paper", "help": "[%(default)s]"}),
        ("--sessions", {"type": whole_numbers, "default": [20, 40], "metavar": "N[,N]"}),
        (
            "--curves",
            {
                "type": whole_numbers,
                "default": [5, 10, 20, 30, 40],
                "metavar": "N[,N]",
                "help": "some policies with so many sessions [5,10,20,30,40]",
            },
        ),
        (
            "--offload",
            {
                "type": whole_numbers,
                "default": [30],
                "metavar": "N[,N]",
                "help": f"some policies with {OFFLOAD_GIB:.0f} GiB of host memory for evicted "
                "blocks, with so many sessions [30]",
            },
        ),
        ("--policy", {"action": "append", "metavar": "P", "help": "may be repeated [all]"}),
        ("--seed", {"type": seeds, "default": [0], "metavar": "S[,S]", "help": "means over them"}),
        (
            "--jobs",
            {
                "type": whole_number,
                "default": len(os.sched_getaffinity(0)),
                "metavar": "N",
                "help": "processes, of about 1 GB each [%(default)s]",
            },
        ),
        (
            "--resume",
            {
                "action": "store_true",
                "help": "take what OUT's JSON file has, replay the rest; for the same traces, and "
                "unless the code has changed",
            },
        ),
        ("--figures", {"type": Path, "metavar": "FILE", "help": "replay nothing, take these"}),
    ):
        parser.add_argument(name, **options)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Writes OUT, its figures as OUT with .json, and its pictures. Raises WorkloadError."""
    out: Path = arguments.out
    if not out.absolute().parent.is_dir():
        raise WorkloadError(f"--out {out}: there is no such folder")
    if arguments.figures:
        result = json.loads(arguments.figures.read_text())
    else:
        result = _measure(arguments, console)
    with_tier = [row for row in result["rows"] if "offload_gib" in row]
    without = [row for row in result["rows"] if "offload_gib" not in row]
    figures = Figures.of(without, result["conditions"]["table_sessions"])
    offload = Figures.of(with_tier, sorted({row["sessions"] for row in with_tier}))
    plots = write_plots(figures, out.parent, out.stem)
    out.write_text(page(figures, offload, result["conditions"], plots))
    console.print(f"wrote {out}, {', '.join(plots)}", markup=False, highlight=False)
    return 0


def _measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    training, usable = _sessions(arguments, console)
    hardware = Hardware.load(PRESETS[arguments.preset])
    plans = [
        Plan(policy, tuple(chosen), tuple(training), seed, hardware, PAPER_CHUNK)
        for seed in arguments.seed
        for count in sorted({*arguments.sessions, *arguments.curves})
        for chosen in [choose_sessions(usable, count, TURN_CAP, CONTEXT_CAP, seed)]
        for policy in _policies(arguments, count)
    ]
    hardware.check_holds(with_subagents(plans[-1].sessions)[0])
    plans += [
        Plan(policy, tuple(chosen), tuple(training), seed, hardware, PAPER_CHUNK, OFFLOAD_GIB)
        for seed in arguments.seed
        for count in arguments.offload
        for chosen in [choose_sessions(usable, count, TURN_CAP, CONTEXT_CAP, seed)]
        for policy in arguments.policy or OFFLOAD_POLICIES
        if policy in OFFLOAD_POLICIES
    ]
    file: Path = arguments.out.with_suffix(".json")
    result: dict[str, Any] = {
        "conditions": conditions(arguments, hardware, training, plans),
        "rows": _rows_so_far(file, plans) if arguments.resume else [],
    }
    known = {_row_key(row) for row in result["rows"]}
    order = {_plan_key(plan): i for i, plan in enumerate(plans)}
    kinds = _kinds()

    def keep(row: dict[str, Any]) -> None:
        """An hour's work is not lost with its last minute: the file has all that is there."""
        result["rows"].append(row | {"kind": kinds[row["policy"]]})
        result["rows"].sort(key=lambda row: order[_row_key(row)])
        part = file.with_suffix(".json.part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(file)

    replay_all([p for p in plans if _plan_key(p) not in known], arguments.jobs, console, keep)
    return result


_Key = tuple[str, int, int, float]


def _plan_key(plan: Plan) -> _Key:
    return (plan.policy, len(plan.sessions), plan.seed, plan.offload_gib)


def _row_key(row: Mapping[str, Any]) -> _Key:
    return (row["policy"], row["sessions"], row["seed"], row.get("offload_gib", 0.0))


def _rows_so_far(file: Path, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Those of these plans that the file has. Raises WorkloadError if it is no such file."""
    wanted = {_plan_key(plan) for plan in plans}
    try:
        rows = json.loads(file.read_text())["rows"]
        return [row for row in rows if _row_key(row) in wanted]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{file}: not the figures of a run ({error!r})") from None


def _sessions(
    arguments: argparse.Namespace, console: Console
) -> tuple[list[Session], list[Session]]:
    """Those to learn from and those to replay, people's pauses cut, as in the paper's set-up."""
    most = max(*arguments.sessions, *arguments.curves, *arguments.offload)
    found = read_sessions(arguments.traces, most, arguments.seed[0], console)
    cut = [with_pauses(session, pause_rule("cut")) for session in found]
    return split_for_training(cut)


def _policies(arguments: argparse.Namespace, count: int) -> list[str]:
    """All policies where there is a table, some where there is only a curve."""
    kinds = _kinds()
    if unknown := [name for name in arguments.policy or () if name not in kinds]:
        raise WorkloadError(f"no policy {unknown[0]!r}; there are {', '.join(kinds)}")
    asked = arguments.policy or list(kinds)
    return [name for name in asked if count in arguments.sessions or name in CURVE_POLICIES]


def _kinds() -> dict[str, str]:
    from cachewise_bench.policies.catalogue import EXPERIMENTS, ORACLES, POLICIES

    def kind(name: str) -> str:
        if name in EXPERIMENTS:
            return EXPERIMENT
        if name in ORACLES:
            return ORACLE
        return PRODUCT if name.startswith("ours") else RIVAL

    return {name: kind(name) for name in POLICIES}
