"""The command `replay`: options → sessions → one process per policy and N → table, JSON, plot."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import Manager, get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cachewise_bench.cost_model import Hardware
from cachewise_bench.synthetic import synthetic_sessions
from cachewise_bench.traces import read_traces
from cachewise_bench.workload import Session, WorkloadError, choose_sessions

EPILOG = """examples:
  cachewise-bench replay --preset paper --traces traces/ --sessions 20,40 --policy all
      the paper's set-up; learned policies train on 80 % of the sessions and the rest is replayed
  cachewise-bench replay --traces synthetic --policy vllm --policy ours --plot ours.png
      two policies on sessions drawn from published statistics
  cachewise-bench replay --traces mine/ --train others/ --hardware my-cards.toml --human keep
      your sessions on your hardware, with their pauses
"""

PAPER_HARDWARE = "h200x2-qwen32b"
TRAIN_SHARE = 0.8
SPLIT_SEED = 7
CUT_PAUSE_S = 0.5
"""A human pause under --human cut: the session goes on at once, as in the known results."""


@dataclass(frozen=True)
class Plan:
    """What one process replays."""

    policy: str
    sessions: tuple[Session, ...]
    training: tuple[Session, ...]
    seed: int
    hardware: Hardware
    chunk: int

    @property
    def label(self) -> str:
        return f"{self.policy} N={len(self.sessions)} seed={self.seed}"


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
        ("--preset", {"choices": ["paper"], "help": "2xH200, 32B, 512-token chunks, 80/20 split"}),
        ("--sessions", {"type": _numbers, "default": [20], "metavar": "N[,N]"}),
        ("--seed", {"type": _numbers, "default": [0], "metavar": "S[,S]"}),
        ("--policy", {"action": "append", "required": True, "metavar": "P"}),
        ("--hardware", {"default": PAPER_HARDWARE, "metavar": "FILE"}),
        ("--chunk", {"type": int, "default": 512, "metavar": "TOKENS"}),
        ("--context-cap", {"type": int, "default": 120_000, "metavar": "TOKENS"}),
        ("--turn-cap", {"type": int, "default": 80, "metavar": "N"}),
        ("--human", {"default": "cut", "metavar": "cut|cap:SECONDS|keep"}),
        ("--processes", {"type": int, "default": 2, "metavar": "N"}),
        ("--json", {"type": Path, "metavar": "FILE"}),
        ("--plot", {"type": Path, "metavar": "FILE"}),
    ):
        parser.add_argument(name, **options)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Replays every policy with every N and seed. Raises WorkloadError for bad options."""
    plans = list(_plans(arguments, console))
    rows = _replay_all(plans, arguments.processes, console)
    Console().print(_table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.plot:
        from cachewise_bench.replay_plot import write_plot

        write_plot(rows, arguments.plot)
    return 0


# ---- steps --------------------------------------------------------------------------------------


def _plans(arguments: argparse.Namespace, console: Console) -> Iterable[Plan]:
    from cachewise_bench.policies.catalogue import POLICIES

    names = list(POLICIES) if "all" in arguments.policy else arguments.policy
    if unknown := [name for name in names if name not in POLICIES]:
        raise WorkloadError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}, and all")
    if arguments.preset and arguments.train:
        raise WorkloadError("--preset paper splits --traces itself: leave --train out")
    hardware = Hardware.load(arguments.hardware)
    training, usable = _training_and_replayed(arguments, console)
    for seed in arguments.seed:
        for count in arguments.sessions:
            chosen = choose_sessions(usable, count, arguments.turn_cap, arguments.context_cap, seed)
            for name in names:
                yield Plan(name, tuple(chosen), training, seed, hardware, arguments.chunk)


def _training_and_replayed(
    arguments: argparse.Namespace, console: Console
) -> tuple[tuple[Session, ...], list[Session]]:
    pause = _pause_rule(arguments.human)
    found = _read(arguments.traces, arguments, console)
    if arguments.preset:
        found.sort(key=lambda session: session.name)
        random.Random(SPLIT_SEED).shuffle(found)
        share = int(TRAIN_SHARE * len(found))
        training, found = found[:share], found[share:]
    else:
        training = _read(arguments.train, arguments, console) if arguments.train else []
    # The same pauses on both sides: otherwise waits are learned that the replay never has.
    training = [_with_pauses(session, pause) for session in training]
    return tuple(training), [_with_pauses(session, pause) for session in found]


def _read(paths: str, arguments: argparse.Namespace, console: Console) -> list[Session]:
    sessions: list[Session] = []
    for path in paths.split(","):
        if path == "synthetic":
            most = max(arguments.sessions)
            sessions += synthetic_sessions(5 * most, arguments.seed[0])
            continue
        traces = read_traces(Path(path).expanduser())
        for line in traces.broken_lines[:5]:
            console.print(f"skipped {line}", style="yellow", markup=False, highlight=False)
        sessions += traces.sessions
    return sessions


def _pause_rule(text: str) -> float:
    """The longest human pause in seconds that --human allows; 0 for cut."""
    kind, _, seconds = text.partition(":")
    try:
        if kind == "cap" and float(seconds) > 0:
            return float(seconds)
    except ValueError:
        pass
    if text in ("cut", "keep"):
        return 0.0 if text == "cut" else float("inf")
    raise WorkloadError(f"--human is cut, keep or cap:SECONDS, not {text!r}")


def _with_pauses(session: Session, longest_s: float) -> Session:
    pause_s = longest_s or CUT_PAUSE_S
    turns = (
        turn if turn.tool_calls else replace(turn, wait_s=min(turn.wait_s, pause_s))
        for turn in session.turns
    )
    return replace(session, turns=tuple(turns))


def _replay_all(plans: Sequence[Plan], processes: int, console: Console) -> list[dict[str, Any]]:
    """The rows in the order of the plans; a progress bar for each."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # in the processes; bars are drawn here
    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        Manager() as manager,
        Progress(*columns, console=console) as progress,
        # A process per plan: vLLM keeps state per process, and memory goes back at its end.
        ProcessPoolExecutor(processes, get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        done = manager.dict()
        bars = {
            i: progress.add_task(p.label, total=_turns(p), start=False) for i, p in enumerate(plans)
        }
        futures = {pool.submit(replay_one, plan, i, done): i for i, plan in enumerate(plans)}
        rows: dict[int, dict[str, Any]] = {}
        while len(rows) < len(plans):
            for i, turns in done.items():
                progress.start_task(bars[i])
                progress.update(bars[i], completed=turns)
            for future in [f for f in futures if f.done()]:
                rows[futures.pop(future)] = future.result()
            time.sleep(0.2)
    return [rows[i] for i in range(len(plans))]


def replay_one(plan: Plan, index: int, done: Any) -> dict[str, Any]:
    """Replays one plan in this process and scores it; done[index] is the number of turns so far."""
    from cachewise_bench.policies.catalogue import POLICIES
    from cachewise_bench.policies.training import Training
    from cachewise_bench.replay import Replay
    from cachewise_bench.scores import score

    last = 0.0

    def progress(turns: int, total: int) -> None:
        nonlocal last
        if turns == total or time.monotonic() - last > 0.5:
            last = time.monotonic()
            done[index] = turns

    started = time.monotonic()
    policy = POLICIES[plan.policy](Training(plan.training))
    replay = Replay(list(plan.sessions), policy, plan.hardware, plan.chunk, progress)
    outcome = replay.run()
    row = score(outcome, len(plan.sessions), plan.seed, time.monotonic() - started)
    return row | {"policy": plan.policy}


def _turns(plan: Plan) -> int:
    return sum(len(session.turns) for session in plan.sessions)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = {
        "policy": "policy",
        "sessions": "N",
        "seed": "seed",
        "session_time_mean_s": "session time, mean s",
        "session_time_p99_s": "P99 s",
        "request_p50_s": "request P50 s",
        "request_p99_s": "P99 s",
        "max_wait_s": "longest wait s",
        "goodput_tok_s": "goodput tok/s",
        "recompute_ratio": "recompute",
        "hit_rate": "hit rate",
        "evicted_blocks": "evicted blocks",
        "scheduler_cpu_us_per_step": "CPU µs/step",
    }
    table = Table(title="Agent sessions over vLLM's scheduler on a virtual clock", min_width=150)
    for key, name in columns.items():
        table.add_column(name, justify="left" if key == "policy" else "right")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    return table


def _cell(value: object) -> str:
    return (
        f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _numbers(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [int(part) for part in text.split(",")]
