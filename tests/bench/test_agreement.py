"""The replay against the engine: a real vLLM server on the CPU, and vLLM's scheduler on the virtual
clock with the cost model fitted to that server, serve the same requests.

    .venv/bin/python -m pytest -m slow tests/bench/test_agreement.py --log-cli-level=INFO

It shows both. What the two share and what the replay decides for itself is in recording.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench import vllm_server
from cachewise_bench.engine import Limits, PolicyRun, run_policy
from cachewise_bench.policies.base import Policy
from cachewise_bench.script import Scales, Script, Tokenizer, write_scripts
from cachewise_bench.tiny_model import ensure_model
from cachewise_bench.vllm_server import BLOCK_TOKENS, EngineSettings
from cachewise_bench.workload import Session, ToolCall, Turn

from .recording import RecordedForecasts, Recording, fitted, read, replayed
from .recording_scheduler import PATH_VARIABLE

SESSIONS, TURNS = 6, 8
SYSTEM_TOKENS = 600
POOL_SHARE = 0.5
AS_WRITTEN = Scales(tokens=1.0, time=1.0, max_wait_s=60.0)
MOST_CONTEXT_TOKENS = 8_192
SCHEDULERS = {"stock": "RecordedScheduler", "cachewise": "RecordedCacheWise"}

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests are short even where other processes slow the server down tenfold."""
    with pytest.MonkeyPatch.context() as smaller:
        smaller.setattr("cachewise_bench.tiny_model.HIDDEN_SIZE", 256)
        return ensure_model(tmp_path_factory.mktemp("models"), layers=2)


@pytest.mark.parametrize("policy", SCHEDULERS)
def test_hits_and_evictions_are_the_engines(
    policy: str, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = write_scripts(_sessions(), Tokenizer(small_model), AS_WRITTEN, seed=0)
    demand = sum(s.steps[-1].prompt_tokens for s in scripts) // BLOCK_TOKENS
    settings = EngineSettings(small_model, round(POOL_SHARE * demand), MOST_CONTEXT_TOKENS)
    run, recording = _served(policy, settings, scripts, tmp_path, monkeypatch)
    machine = fitted(recording, settings.blocks)
    replay = replayed(
        recording, machine, Policy() if policy == "stock" else RecordedForecasts(recording)
    )
    assert run.result.evicted_blocks > demand / 4  # else there is nothing to agree on
    theirs = {
        "hit tokens": sum(request.cached_tokens or 0 for request in run.requests),
        "evicted blocks": run.result.evicted_blocks,
    }
    mine = {
        "hit tokens": sum(request.hit_tokens for request in replay.requests),
        "evicted blocks": replay.evicted_blocks,
    }
    logger.info("%s: the engine %s, the replay %s", policy, theirs, mine)
    assert mine == pytest.approx(theirs, rel=0.05)


def _sessions() -> list[Session]:
    chance = random.Random(0)
    sessions = []
    for i in range(SESSIONS):
        prompt, turns = 1_000 + 100 * i, []
        for turn in range(TURNS):
            call = ToolCall("Bash", f'{{"command": "pytest part{turn}"}}')
            turns.append(Turn(prompt, 30, (call,), chance.uniform(4.0, 24.0)))
            prompt += chance.randrange(150, 650)
        sessions.append(Session(f"s{i}", tuple(turns), system_tokens=SYSTEM_TOKENS))
    return sessions


def _served(
    policy: str,
    settings: EngineSettings,
    scripts: list[Script],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[PolicyRun, Recording]:
    """By a real server, whose scheduler writes down what happens."""

    def recorded(*args: Any) -> list[str]:
        scheduler = f"tests.bench.recording_scheduler.{SCHEDULERS[policy]}"
        return [*vllm_server.engine_command(*args), "--scheduler-cls", scheduler]

    monkeypatch.setattr("cachewise_bench.engine.engine_command", recorded)
    monkeypatch.setenv(PATH_VARIABLE, str(folder / "recording.jsonl"))
    limits = Limits(start_s=900.0, request_s=300.0)
    run = asyncio.run(run_policy(policy, settings, scripts, limits, folder, lambda request: None))
    assert not any(request.error for request in run.requests)
    return run, read(folder / "recording.jsonl")
