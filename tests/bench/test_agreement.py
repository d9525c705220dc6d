"""The replay against the engine: a real vLLM server on the CPU and vLLM's scheduler on the virtual
clock serve the same sessions, with the cost model fitted to that server.

The waits are longer than the requests take, so that who comes when does not hang on milliseconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cachewise_bench.agents import STAGGER_S, Request
from cachewise_bench.cost_model import Hardware
from cachewise_bench.engine import Limits, PolicyRun, run_policy
from cachewise_bench.policies.base import Policy
from cachewise_bench.replay import Outcome, Replay
from cachewise_bench.script import Scales, Script, Tokenizer, write_scripts
from cachewise_bench.vllm_server import BATCHED_TOKENS, BLOCK_TOKENS, EngineSettings
from cachewise_bench.workload import Session, ToolCall, Turn
from scipy.optimize import nnls

SESSIONS, TURNS = 6, 8
SYSTEM_TOKENS = 600
POOL_SHARE = 0.5
AS_WRITTEN = Scales(tokens=1.0, time=1.0, max_wait_s=60.0)
MOST_CONTEXT_TOKENS = 8_192

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


def test_hits_and_evictions_are_the_engines(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = write_scripts(_sessions(), Tokenizer(tiny_model), AS_WRITTEN, seed=0)
    demand = sum(s.steps[-1].prompt_tokens for s in scripts) // BLOCK_TOKENS
    pool = round(POOL_SHARE * demand)
    alone = _served(scripts[:1], tiny_model, 2 * demand, tmp_path / "alone")
    model, overhead_s = _fitted(alone.requests, pool)
    together = _served(scripts, tiny_model, pool, tmp_path / "together")
    monkeypatch.setattr("cachewise_bench.replay.START_STAGGER_S", STAGGER_S)
    sent = [_as_sent(script, together.requests, overhead_s) for script in scripts]
    replayed = Replay(sent, Policy(), model, chunk=BATCHED_TOKENS).run()
    assert together.result.evicted_blocks > demand  # else there is nothing to agree on
    assert _hit_rate(replayed) == pytest.approx(together.result.prefix_hit_rate, rel=0.05)
    assert replayed.evicted_blocks == pytest.approx(together.result.evicted_blocks, rel=0.05)


def _sessions() -> list[Session]:
    chance = random.Random(0)
    sessions = []
    for i in range(SESSIONS):
        prompt, turns = 1_000 + 100 * i, []
        for turn in range(TURNS):
            call = ToolCall("Bash", f'{{"command": "pytest part{turn}"}}')
            turns.append(Turn(prompt, 30, (call,), chance.uniform(2.0, 12.0)))
            prompt += chance.randrange(150, 650)
        sessions.append(Session(f"s{i}", tuple(turns), system_tokens=SYSTEM_TOKENS))
    return sessions


def _served(scripts: Sequence[Script], model: Path, blocks: int, logs: Path) -> PolicyRun:
    logs.mkdir()
    settings = EngineSettings(model, blocks, MOST_CONTEXT_TOKENS)
    limits = Limits(start_s=300.0, request_s=300.0)
    run = asyncio.run(run_policy("stock", settings, scripts, limits, logs, lambda request: None))
    assert not any(request.error for request in run.requests)
    return run


def _fitted(requests: Sequence[Request], blocks: int) -> tuple[Hardware, float]:
    """The cost model whose latencies are nearest to those of requests served alone, and what each
    spends outside of the engine's steps, in seconds."""
    features = np.array([_work(request) for request in requests], dtype=float)
    latencies = np.array([request.latency_s for request in requests])
    (overhead_s, step_s, token_s, pair_s), _ = nnls(features, latencies)
    step_ms = tuple(1e3 * (step_s + token_s * tokens) + 1e-6 for tokens in (1, BATCHED_TOKENS))
    model = Hardware(
        name="this machine's CPU",
        kv_bytes_per_token=1,
        pool_blocks=blocks,
        block_size=BLOCK_TOKENS,
        step_tokens=(1.0, float(BATCHED_TOKENS)),
        step_ms=step_ms,
        decode_ms_per_context_token=1e3 * pair_s,
        prefill_ms_per_token_and_context_token=1e3 * pair_s,
        host_ms=0.0,
    )
    return model, overhead_s


def _work(request: Request) -> tuple[float, float, float, float]:
    """Of a request alone: 1, its steps, its computed tokens, and the pairs that attention sees."""
    new = request.prompt_tokens - request.cached_tokens
    chunks = -(-new // BATCHED_TOKENS)
    pairs = new * request.prompt_tokens + request.output_tokens * request.prompt_tokens
    return (1.0, chunks + request.output_tokens - 1, new + request.output_tokens - 1, pairs)


def _as_sent(script: Script, requests: Sequence[Request], overhead_s: float) -> Session:
    """The session with the token counts that the server saw."""
    mine = [request for request in requests if request.session == script.session]
    turns = tuple(
        Turn(request.prompt_tokens, request.output_tokens, (), step.wait_s + overhead_s)
        for request, step in zip(mine, script.steps, strict=True)
    )
    return replace(Session(script.session, turns), system_tokens=SYSTEM_TOKENS)


def _hit_rate(outcome: Outcome) -> float:
    hits = sum(request.hit_tokens for request in outcome.requests)
    return hits / sum(request.prompt_tokens for request in outcome.requests)
