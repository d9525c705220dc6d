"""The command line's options; the defaults of settings are in config.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from .config import Config
from .importers.command import FORMATS
from .train import TENANT

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_EXAMPLES = """examples:
  cachewise-predictor serve
  cachewise-predictor serve --redis-url redis://cache:6379/0 --grpc 0.0.0.0:50051
  cachewise-predictor serve --no-trainer --redis-url redis://cache:6379/0
  cachewise-predictor trainer --redis-url redis://cache:6379/0
  cachewise-predictor import --format claude-code ~/.claude/projects --out traces/mine.jsonl.gz
  cachewise-predictor train --traces traces/
  cachewise-predictor train --traces a.jsonl.gz,b.jsonl.gz --redis-url redis://cache:6379/0
  cachewise-predictor explain --tool Bash --args '{"command": "pytest -x tests/"}'
  cachewise-predictor clusters
  cachewise-predictor models list

Each option may be set by the environment instead, e.g. CACHEWISE_PREDICTOR_REDIS_URL.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="cachewise-predictor",
        description="Forecasts how long coding-agent sessions stay away in tool calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument(
        "--redis-url",
        metavar="URL",
        help="Redis or Valkey that keeps intervals and models; without it an embedded Valkey",
    )
    store.add_argument(
        "--data-dir",
        metavar="DIR",
        help=f"folder of the embedded Valkey (default {Config.data_dir})",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands, store)
    _add_trainer(commands, store)
    _add_train(commands, store)
    _add_insight(commands, store)
    _add_models(commands, store)
    _add_import(commands)
    return top


def _add_serve(commands: _Commands, store: argparse.ArgumentParser) -> None:
    serve_parser = commands.add_parser("serve", parents=[store], help="run the prediction service")
    serve_parser.add_argument(
        "--grpc", metavar="HOST:PORT", help=f"for engines (default {Config.grpc}; port 0: any)"
    )
    serve_parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"health, metrics, model page (default {Config.http}; port 0: any)",
    )
    serve_parser.add_argument(
        "--trainer",
        action=argparse.BooleanOptionalAction,
        help=f"start a trainer beside it, at low priority (default {Config.trainer})",
    )


def _add_trainer(commands: _Commands, store: argparse.ArgumentParser) -> None:
    trainer = commands.add_parser(
        "trainer",
        parents=[store],
        help="learn from what engines report",
        description="Trains models on recent intervals. `serve` starts one by itself; of several "
        "on a store one trains, and another takes over when it ends.",
    )
    # Of `serve`: end when the process at the other end of standard input ends.
    trainer.add_argument("--child", action="store_true", help=argparse.SUPPRESS)


def _add_train(commands: _Commands, store: argparse.ArgumentParser) -> None:
    train_parser = commands.add_parser(
        "train", parents=[store], help="build the first model from trace files"
    )
    train_parser.add_argument(
        "--traces",
        metavar="PATH[,PATH]",
        required=True,
        help="*.jsonl or *.jsonl.gz files, or folders of them (one LLM turn per line)",
    )


def _add_insight(commands: _Commands, store: argparse.ArgumentParser) -> None:
    commands.add_parser(
        "clusters", parents=[store], help="list the clusters of the current model with their waits"
    )
    explain_parser = commands.add_parser(
        "explain", parents=[store], help="show where the forecast of a tool call comes from"
    )
    explain_parser.add_argument("--tool", required=True, metavar="NAME", help="the tool's name")
    explain_parser.add_argument(
        "--args", default="", metavar="TEXT", help="the call's arguments, a command or JSON"
    )
    explain_parser.add_argument(
        "--tenant", default=TENANT, metavar="NAME", help="whose waits count [%(default)s]"
    )


def _add_models(commands: _Commands, store: argparse.ArgumentParser) -> None:
    models = commands.add_parser("models", help="list, compare and restore stored models")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", parents=[store], help="the stored models, newest first")
    for name, text in (
        ("show", "the largest groups of a model, with their waits"),
        ("diff", "how the waits of two models differ"),
        ("rollback", "make an older model the current one; what came later is left out"),
    ):
        action = actions.add_parser(name, parents=[store], help=text)
        action.add_argument("version", metavar="VERSION")
        if name == "diff":
            action.add_argument("other", metavar="OTHER")


def _add_import(commands: _Commands) -> None:
    importer = commands.add_parser(
        "import",
        help="make a trace file of agents' logs",
        description="Makes one normalised trace of logs, for `train --traces` and the bench. "
        "Secrets that have a pattern are taken out of the arguments.",
    )
    importer.add_argument("--format", required=True, choices=FORMATS, help="of the logs")
    importer.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="log files, or folders of them"
    )
    importer.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="*.jsonl, or *.jsonl.gz to pack it"
    )
