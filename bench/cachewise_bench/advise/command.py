"""The command `advise`: replays somebody's sessions and says whether CacheWise pays on them."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from cachewise_bench.advise.advice import LEVERS, OFFLOAD_LEVERS, Lever, Traffic, advise
from cachewise_bench.argument_types import positive_number, whole_number, whole_numbers
from cachewise_bench.cost_model import Hardware
from cachewise_bench.replay_runs import Plan, replay_all
from cachewise_bench.replayed_sessions import pause_rule, read_sessions, with_pauses
from cachewise_bench.workload import (
    Session,
    WorkloadError,
    choose_sessions,
    usable_chains,
    with_subagents,
)

EPILOG = """examples:
  cachewise-bench advise --traces ~/.claude/projects --hardware a100-8b
      your own Claude Code sessions on one A100 with an 8B model
  cachewise-bench advise --traces traces/ --hardware my.toml --sessions 10,30 --plot advice.svg
      on your hardware, with 10 and with 30 sessions at once
  cachewise-bench advise --traces traces/ --hardware l40s-8b --offload-gib 64
      is host memory for evicted blocks the better lever?
"""

SESSIONS = [2, 5, 10, 20, 40]


def add_parser(commands: Any) -> None:
    """Adds `advise` to the command line."""
    parser = commands.add_parser(
        "advise",
        help="does it pay on my traffic?",
        description="Replays your sessions on vLLM's real scheduler and a virtual clock, without a "
        "GPU, with several numbers of them at once, and says from how many on the pool is too "
        "small, what each lever brings, and when to leave it off.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    for name, options in (
        (
            "--traces",
            {
                "required": True,
                "metavar": "PATH[,PATH]",
                "help": "trace files, folders of them or of Claude Code's logs; or synthetic",
            },
        ),
        ("--hardware", {"required": True, "metavar": "FILE", "help": "TOML, or a preset's name"}),
        (
            "--sessions",
            {"type": whole_numbers, "metavar": "N[,N]", "help": "how many at once [2,5,10,20,40]"},
        ),
        (
            "--train",
            {
                "metavar": "PATH[,PATH]",
                "help": "sessions to learn forecasts from [those that are not replayed]",
            },
        ),
        (
            "--offload-gib",
            {"type": positive_number, "metavar": "GIB", "help": "host memory, as one more lever"},
        ),
        (
            "--chunk",
            {
                "type": whole_number,
                "default": 2048,
                "metavar": "TOKENS",
                "help": "the server's --max-num-batched-tokens [%(default)s]",
            },
        ),
        ("--context-cap", {"type": whole_number, "default": 120_000, "metavar": "TOKENS"}),
        ("--turn-cap", {"type": whole_number, "default": 80, "metavar": "N"}),
        (
            "--human",
            {
                "default": "keep",
                "metavar": "cut|cap:SECONDS|keep",
                "help": "people's pauses [%(default)s]",
            },
        ),
        ("--seed", {"type": int, "default": 0, "metavar": "N", "help": "which are drawn [0]"}),
        (
            "--jobs",
            {
                "type": whole_number,
                "default": len(os.sched_getaffinity(0)),
                "metavar": "N",
                "help": "processes, of about 1 GB each [%(default)s]",
            },
        ),
        ("--json", {"type": Path, "metavar": "FILE"}),
        ("--plot", {"type": Path, "metavar": "FILE"}),
    ):
        parser.add_argument(name, **options)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the advice. Raises WorkloadError for bad options and sessions."""
    _check_folders(arguments)
    hardware = Hardware.load(arguments.hardware)
    chosen, training = choose(arguments, console)
    hardware.check_holds(with_subagents(chosen[-1])[0])
    levers = [*LEVERS, *(OFFLOAD_LEVERS if arguments.offload_gib else ())]
    runs = [
        (lever, _plan(lever, sessions, training, hardware, arguments))
        for sessions in chosen
        for lever in levers
    ]
    rows = replay_all([plan for _, plan in runs], arguments.jobs, console)
    labelled = [
        (len(plan.sessions), lever, row) for (lever, plan), row in zip(runs, rows, strict=True)
    ]
    advice = advise(_traffic(chosen[-1], hardware), labelled)
    for sentence in advice.sentences():
        Console().print(sentence, markup=False, highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(advice.as_json(), indent=1) + "\n")
    if arguments.plot:
        from cachewise_bench.replay_plot import write_plot

        named = [row | {"policy": lever.words} for _, lever, row in labelled]
        write_plot(named, arguments.plot)
    return 0


def _check_folders(arguments: argparse.Namespace) -> None:
    """Files that could not be written after all the work."""
    for option, path in (("--json", arguments.json), ("--plot", arguments.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise WorkloadError(f"{option} {path}: there is no such folder")


def choose(
    arguments: argparse.Namespace, console: Console
) -> tuple[list[list[Session]], list[Session]]:
    """The sessions of each replay, ascending in number, and those to learn from. No session is
    replayed twice at once, so there may be fewer than asked for."""
    longest_s = pause_rule(arguments.human)
    asked = arguments.sessions or SESSIONS
    found = [
        with_pauses(session, longest_s)
        for session in read_sessions(arguments.traces, max(asked), arguments.seed, console)
    ]
    there_are = len(usable_chains(found, arguments.turn_cap, arguments.context_cap))
    counts = sorted({min(count, there_are) for count in asked})
    if max(asked) > there_are:
        console.print(f"the traces have {there_are} usable sessions: no more are replayed at once")
    chosen = [
        choose_sessions(found, n, arguments.turn_cap, arguments.context_cap, arguments.seed)
        for n in counts
    ]
    if arguments.train:
        training = read_sessions(arguments.train, 1, arguments.seed, console)
    else:
        replayed = {session.name.partition("#")[0] for session in chosen[-1]}
        training = [session for session in found if session.name not in replayed]
    return chosen, [with_pauses(session, longest_s) for session in training]


def _plan(
    lever: Lever,
    sessions: list[Session],
    training: list[Session],
    hardware: Hardware,
    arguments: argparse.Namespace,
) -> Plan:
    return Plan(
        lever.policy,
        tuple(sessions),
        tuple(training),
        arguments.seed,
        hardware,
        arguments.chunk,
        arguments.offload_gib if lever.is_offloaded else 0.0,
    )


def _traffic(sessions: list[Session], hardware: Hardware) -> Traffic:
    return Traffic(
        hardware.name,
        hardware.pool_blocks * hardware.block_size,
        tuple(max(turn.context_tokens for turn in session.turns) for session in sessions),
        sum(len(session.turns) for session in with_subagents(sessions)[0]),
    )
