"""The command line's options. Every default is written here, and only here."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from cachewise_bench import replay_command, step_cost
from cachewise_bench.advise import command as advise
from cachewise_bench.benchmarks import command as benchmarks
from cachewise_bench.engine import POLICIES
from cachewise_bench.forecast import command as forecast
from cachewise_bench.serving import command as serving
from cachewise_bench.workload import WorkloadError

DESCRIPTION = "Replays coding-agent sessions against vLLM, with and without CacheWise."

ENGINE_EPILOG = """examples:
  cachewise-bench engine
      synthetic sessions, stock vLLM against CacheWise, a table at the end (about 5 minutes)
  cachewise-bench engine --traces ~/.claude/projects --json result.json --report result.html
      your own Claude Code sessions
  cachewise-bench engine --traces traces.jsonl.gz --pool-fraction 1.2 --repeat 5
      a pool that holds everything: the policy should not matter; medians of five rounds, since
      times on a shared machine drift
  cachewise-bench engine --policy cachewise --kill-predictor-after 20
      a fault drill: no request may fail when the predictor is killed
  cachewise-bench engine --base-url http://gpu-1:8000 --model ~/models/Qwen3-32B \\
      --traces traces.jsonl.gz --sessions 40 --turns 80 --token-scale 1 --time-scale 1
      a server that runs already, with real sizes and waits; start it once as stock vLLM, once
      with CacheWise, with the tool parser of its model, and compare the tables
"""


OWN_SERVERS_ONLY = {
    "policy": None,
    "pool_fraction": 0.4,
    "num_gpu_blocks_override": None,
    "kill_predictor_after": None,
    "keep_logs": None,
}
"""Options of `engine`, with their defaults, that mean nothing to a server that runs already."""


def parser(run_engine: Callable[..., int]) -> argparse.ArgumentParser:
    """The whole command line; run_engine is what `engine` runs."""
    top = argparse.ArgumentParser(prog="cachewise-bench", description=DESCRIPTION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    engine = commands.add_parser(
        "engine",
        help="compare policies on a real vLLM server on this machine",
        description="Starts a vLLM server per policy, one after the other, with equal settings, "
        "and sends the same agent sessions through each.",
        epilog=ENGINE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engine.set_defaults(run=run_engine)
    _add_workload_options(engine)
    _add_engine_options(engine)
    _add_output_options(engine)
    forecast.add_parser(commands)
    replay_command.add_parser(commands)
    advise.add_parser(commands)
    benchmarks.add_parser(commands)
    serving.add_parser(commands)
    step_cost.add_parser(commands)
    return top


def check_engine(arguments: argparse.Namespace) -> None:
    """Raises WorkloadError for options of `engine` that contradict each other."""
    if not arguments.base_url:
        if arguments.model_name:
            raise WorkloadError("--model-name is for a server that runs already: give --base-url")
        return
    if arguments.model is None:
        raise WorkloadError("--base-url needs --model DIR, the folder of its model's tokenizer")
    for name, default in OWN_SERVERS_ONLY.items():
        if getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise WorkloadError(f"{option} is for servers that are started: not with --base-url")


def _add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sessions")
    group.add_argument(
        "--traces",
        type=Path,
        metavar="PATH",
        help="a trace file, a folder of them, or a folder of Claude Code logs such as "
        "~/.claude/projects; without it the sessions are synthetic",
    )
    for name, kind, default, metavar, text in (
        ("--sessions", _count, 8, "N", "sessions that run at once"),
        ("--turns", _count, 12, "N", "a session's turns at most"),
        ("--context-cap", _count, 120_000, "TOKENS", "a session ends where its context passes it"),
        ("--token-scale", _positive, 0.06, "F", "traced token counts are multiplied by this"),
        ("--time-scale", _positive, 0.1, "F", "traced waits are multiplied by this"),
        ("--max-wait", _positive, 10.0, "SECONDS", "no wait is longer, after scaling"),
        ("--seed", int, 0, "N", "which sessions are drawn, and their words"),
    ):  # fmt: skip
        group.add_argument(
            name, type=kind, default=default, metavar=metavar, help=f"{text} [%(default)s]"
        )


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        help="which to run, in this order; may be repeated [stock, then cachewise]",
    )
    group.add_argument(
        "--repeat",
        type=_count,
        default=1,
        metavar="N",
        help="rounds of all policies, every second one in reverse order; the figures are their "
        "medians, the ratio the median of the rounds' ratios [%(default)s]",
    )
    _add_pool_options(group)
    group.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="a model's folder; without it a small random model is made in .cachewise/models",
    )
    group.add_argument(
        "--base-url",
        metavar="URL",
        help="a server that runs already: none is started, and its policy is its own; --model is "
        "then the folder of its tokenizer",
    )
    group.add_argument(
        "--model-name", metavar="NAME", help="the model's name there [the only one that it has]"
    )
    group.add_argument(
        "--timeout",
        type=_positive,
        default=300.0,
        metavar="SECONDS",
        help="for a server's start, and for each request [%(default)s]",
    )
    group.add_argument(
        "--kill-predictor-after",
        type=_positive,
        metavar="SECONDS",
        help="fault drill: SIGKILL to the predictor so long after the first request",
    )


def _add_pool_options(group: argparse._ArgumentGroup) -> None:
    pool = group.add_mutually_exclusive_group()
    pool.add_argument(
        "--pool-fraction",
        type=_positive,
        default=OWN_SERVERS_ONLY["pool_fraction"],
        metavar="F",
        help="size of the KV pool, as a share of the sessions' summed contexts [%(default)s]",
    )
    pool.add_argument(
        "--num-gpu-blocks-override",
        type=_count,
        metavar="N",
        help="size of the KV pool in blocks of 32 tokens",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    group.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page with plots to FILE"
    )
    group.add_argument(
        "--keep-logs", type=Path, metavar="DIR", help="keep the servers' logs and data in DIR"
    )


def _count(text: str) -> int:
    """A whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


def _positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


_count.__name__ = "whole number"  # What argparse calls it in its messages.
_positive.__name__ = "number"
