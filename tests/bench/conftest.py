"""The tiny model, made once (a few seconds), and replays without processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.replay_runs import Plan, replay_one
from cachewise_bench.script import Tokenizer
from cachewise_bench.tiny_model import ensure_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer(tiny_model)


@pytest.fixture
def replays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Commands replay without starting processes; the plans that they made."""
    made: list[Plan] = []

    def replay_all(plans: Sequence[Plan], *_: object) -> list[dict[str, Any]]:
        made.extend(plans)
        return [replay_one(plan, i, {}) for i, plan in enumerate(plans)]

    for command in ("advise.command", "benchmarks.command"):
        monkeypatch.setattr(f"cachewise_bench.{command}.replay_all", replay_all)
    return made
