"""The tiny model, made once (a few seconds), and replays without processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.replay_runs import Plan, replay_one
from cachewise_bench.script import Tokenizer
from cachewise_bench.tiny_model import ensure_model
from rich.console import Console


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(tmp_path_factory.mktemp("models"), layers=2)


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer(tiny_model)


@pytest.fixture
def replays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Commands replay without starting processes; the plans that they made."""
    made: list[Plan] = []

    def replay_all(
        plans: Sequence[Plan],
        processes: int,
        console: Console,
        on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    ) -> list[dict[str, Any]]:
        rows = []
        for plan in plans:
            made.append(plan)
            rows.append(replay_one(plan, 0, {}))
            on_row(rows[-1])
        return rows

    for command in ("advise.command", "benchmarks.command"):
        monkeypatch.setattr(f"cachewise_bench.{command}.replay_all", replay_all)
    return made
