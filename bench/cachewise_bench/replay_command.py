"""The command `replay`: options → sessions → plans → table, JSON, plot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from cachewise_bench.argument_types import positive_number, seeds, whole_number, whole_numbers
from cachewise_bench.cost_model import Hardware
from cachewise_bench.replay_runs import Plan, replay_all
from cachewise_bench.replay_table import table
from cachewise_bench.replayed_sessions import (
    pause_rule,
    read_sessions,
    split_for_training,
    with_pauses,
)
from cachewise_bench.workload import (
    Session,
    WorkloadError,
    choose_sessions,
    with_subagents,
)

EPILOG = """examples:
  cachewise-bench replay --preset paper --traces traces/ --sessions 20,40 --policy all
      the paper's set-up; learned policies train on 80 % of the sessions and the rest is replayed
  cachewise-bench replay --traces synthetic --policy vllm --policy ours --plot ours.png
      two policies on sessions drawn from published statistics
  cachewise-bench replay --preset l40s-8b --traces traces/ --offload-gib 64 --policy all
      one L40S with an 8B model, and 64 GiB of host memory for evicted blocks
  cachewise-bench replay --traces mine/ --train others/ --hardware my-cards.toml --human keep
      your sessions on your hardware, with their pauses
"""

PRESETS = {"paper": "h200x2-qwen32b", "a100-8b": "a100-8b", "l40s-8b": "l40s-8b"}
"""The hardware of each; the rest of the paper's set-up is the same for all."""

PAPER_CHUNK = 512


def add_parser(commands: Any) -> None:
    """Adds `replay` to the command line."""
    parser = commands.add_parser(
        "replay",
        help="compare policies on vLLM's real scheduler and a virtual clock, without a GPU",
        description="Replays agent sessions over the installed vLLM's own scheduler and cache "
        "manager on a virtual clock, with a cost model of the hardware. Exact and repeatable.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    for name, options in (
        ("--traces", {"required": True, "metavar": "PATH[,PATH]|synthetic"}),
        ("--train", {"metavar": "PATH[,PATH]", "help": "sessions that learned policies train on"}),
        (
            "--preset",
            {
                "choices": list(PRESETS),
                "help": "the paper's set-up (512-token chunks, 80 %% of the sessions to train on), "
                "on its hardware (2xH200, 32B) or another",
            },
        ),
        ("--sessions", {"type": whole_numbers, "default": [20], "metavar": "N[,N]"}),
        ("--seed", {"type": seeds, "default": [0], "metavar": "S[,S]"}),
        ("--policy", {"action": "append", "required": True, "metavar": "P"}),
        ("--hardware", {"metavar": "FILE", "help": "a TOML file, or a preset's hardware by name"}),
        ("--chunk", {"type": whole_number, "metavar": "TOKENS"}),
        (
            "--offload-gib",
            {
                "type": positive_number,
                "default": 0.0,
                "metavar": "GIB",
                "help": "host memory for evicted blocks (vLLM's --kv-offloading-size)",
            },
        ),
        ("--context-cap", {"type": whole_number, "default": 120_000, "metavar": "TOKENS"}),
        ("--turn-cap", {"type": whole_number, "default": 80, "metavar": "N"}),
        ("--human", {"default": "cut", "metavar": "cut|cap:SECONDS|keep"}),
        ("--processes", {"type": whole_number, "default": 2, "metavar": "N"}),
        ("--json", {"type": Path, "metavar": "FILE"}),
        ("--plot", {"type": Path, "metavar": "FILE"}),
    ):
        parser.add_argument(name, **options)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Replays every policy with every N and seed. Raises WorkloadError for bad options."""
    plans = list(make_plans(arguments, console))
    rows = replay_all(plans, arguments.processes, console)
    Console().print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.plot:
        from cachewise_bench.replay_plot import write_plot

        write_plot(rows, arguments.plot)
    return 0


# ---- steps --------------------------------------------------------------------------------------


def make_plans(arguments: argparse.Namespace, console: Console) -> Iterator[Plan]:
    """All that can be wrong with the options is found here, before any replay starts."""
    names = _policies(arguments)
    _check_options(arguments)
    hardware = Hardware.load(_hardware(arguments))
    if 0 < arguments.offload_gib * 2**30 < hardware.block_bytes:
        raise WorkloadError(f"--offload-gib {arguments.offload_gib}: no block fits into it")
    training, usable = _training_and_replayed(arguments, console)
    for seed in arguments.seed:
        for count in arguments.sessions:
            chosen = choose_sessions(usable, count, arguments.turn_cap, arguments.context_cap, seed)
            hardware.check_holds(with_subagents(chosen)[0])
            for name in names:
                yield Plan(
                    name,
                    tuple(chosen),
                    training,
                    seed,
                    hardware,
                    arguments.chunk or PAPER_CHUNK,
                    arguments.offload_gib,
                )


def _policies(arguments: argparse.Namespace) -> list[str]:
    from cachewise_bench.policies.catalogue import EXPERIMENTS, POLICIES

    everything = [name for name in POLICIES if name not in EXPERIMENTS]
    names = everything if "all" in arguments.policy else list(dict.fromkeys(arguments.policy))
    if unknown := [name for name in names if name not in POLICIES]:
        raise WorkloadError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}, and all")
    return names


def _hardware(arguments: argparse.Namespace) -> str:
    """A name or a path; a preset's name stands for its hardware."""
    name: str = arguments.hardware or arguments.preset or "paper"
    return PRESETS.get(name, name)


def _check_options(arguments: argparse.Namespace) -> None:
    """Contradictions, and files that could not be written after all the work."""
    preset = arguments.preset
    if preset and arguments.train:
        raise WorkloadError(f"--preset {preset} splits --traces itself: leave --train out")
    if preset and _hardware(arguments) != PRESETS[preset]:
        raise WorkloadError(f"--preset {preset} is for {PRESETS[preset]}: leave --hardware out")
    if preset and arguments.chunk not in (None, PAPER_CHUNK):
        raise WorkloadError(f"--preset {preset} has {PAPER_CHUNK}-token chunks: leave --chunk out")
    for option, path in (("--json", arguments.json), ("--plot", arguments.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise WorkloadError(f"{option} {path}: there is no such folder")


def _training_and_replayed(
    arguments: argparse.Namespace, console: Console
) -> tuple[tuple[Session, ...], list[Session]]:
    longest_s = pause_rule(arguments.human)
    most, seed = max(arguments.sessions), arguments.seed[0]
    found = read_sessions(arguments.traces, most, seed, console)
    training: list[Session] = []
    if arguments.preset:
        training, found = split_for_training(found)
    elif arguments.train:
        training = read_sessions(arguments.train, most, seed, console)
        if both := {s.name for s in training} & {s.name for s in found}:
            raise WorkloadError(f"session {min(both)} is in --train and in --traces")
    # The same pauses on both sides: otherwise waits are learned that the replay never has.
    training = [with_pauses(session, longest_s) for session in training]
    return tuple(training), [with_pauses(session, longest_s) for session in found]
