"""The replays of one command: a process for each policy, N and seed, with progress bars."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Manager, get_context
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cachewise_bench.cost_model import Hardware
from cachewise_bench.workload import Session, with_subagents


@dataclass(frozen=True)
class Plan:
    """What one process replays."""

    policy: str
    sessions: tuple[Session, ...]
    training: tuple[Session, ...]
    seed: int
    hardware: Hardware
    chunk: int
    offload_gib: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.policy} N={len(self.sessions)} seed={self.seed}"

    @property
    def turns(self) -> int:
        """Those of the subagents, too."""
        return sum(len(session.turns) for session in with_subagents(self.sessions)[0])


def replay_all(
    plans: Sequence[Plan],
    processes: int,
    console: Console,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """The rows in the order of the plans; a progress bar for each. on_row: called with each row as
    soon as it is there."""
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
            i: progress.add_task(p.label, total=p.turns, start=False) for i, p in enumerate(plans)
        }
        futures = {pool.submit(replay_one, plan, i, done): i for i, plan in enumerate(plans)}
        rows: dict[int, dict[str, Any]] = {}
        while len(rows) < len(plans):
            for i, turns in done.items():
                progress.start_task(bars[i])
                progress.update(bars[i], completed=turns)
            for future in [f for f in futures if f.done()]:
                row = rows[futures.pop(future)] = future.result()
                on_row(row)
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
    replay = Replay(
        list(plan.sessions), policy, plan.hardware, plan.chunk, plan.offload_gib, progress
    )
    with _rare_collections():
        outcome = replay.run()
    row = score(outcome, len(plan.sessions), plan.seed, time.monotonic() - started)
    row |= {"policy": plan.policy}
    if plan.offload_gib:
        row |= {"offload_gib": plan.offload_gib, "loaded_blocks": outcome.loaded_blocks}
    return row


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python's collector would walk vLLM's modules and the requests' long lists of tokens again and
    again; next to nothing in a replay needs it."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
