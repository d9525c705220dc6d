"""A vLLM server of a run: its command line, its environment, the size of its KV pool.

Stock and CacheWise get the same options; CacheWise's are the three that an operator adds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from cachewise_bench.cpu import this_cpu
from cachewise_bench.servers import Process
from cachewise_bench.workload import WorkloadError

BLOCK_TOKENS = 32
"""vLLM's attention on CPUs wants a multiple of 32."""

BATCHED_TOKENS = 1024


@dataclass(frozen=True)
class EngineSettings:
    """What is equal for all policies of a run."""

    model: Path
    blocks: int
    max_model_len: int
    served_name: str = "bench"
    dtype: str = field(default_factory=lambda: this_cpu().dtype)
    """Of weights and KV cache, in vLLM's words."""


def engine_command(
    settings: EngineSettings, port: int, events_endpoint: str, hook: Mapping[str, Any] | None
) -> list[str]:
    """vLLM's server; with hook (the hook's settings) CacheWise decides, without it stock vLLM.

    events_endpoint: where the bench listens for vLLM's own events of the KV cache.
    """
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events_endpoint,
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(settings.model), "--served-model-name", settings.served_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(settings.blocks)),
        *("--max-model-len", str(settings.max_model_len), "--dtype", settings.dtype),
        *("--max-num-batched-tokens", str(BATCHED_TOKENS), "--enforce-eager"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)),
    ]
    if hook is not None:
        command += [
            *("--scheduler-cls", "cachewise_engine_hook.scheduler.CacheWiseScheduler"),
            *("--middleware", "cachewise_engine_hook.middleware.SessionMiddleware"),
            *("--additional-config", json.dumps({"cachewise": dict(hook)})),
        ]
    return command


def engine_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What vLLM needs to run from local files on CPUs; what environ has already stays."""
    wanted = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {name: environ.get(name, value) for name, value in wanted.items()}


async def engine_ready(process: Process, base_url: str, timeout_s: float) -> None:
    """Waits until the server answers /health.

    Raises ServerError when the process ends, and when it takes longer than timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        while time.monotonic() < deadline:
            process.check()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(f"{base_url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.25)
    raise process.fail(f"was not ready after {timeout_s:.0f} s; try a longer --timeout")


def pool_blocks(contexts: Mapping[str, int], fraction: float, override: int | None) -> int:
    """Blocks of the KV pool: override, or fraction of the sessions' summed final contexts.

    contexts: tokens by session. A fraction too small for the largest session is raised to fit it;
    an override too small for it raises WorkloadError, since vLLM could not serve that session.
    """
    largest = max(contexts, key=lambda name: contexts[name])
    # One block of the pool is vLLM's null block, one may be needed beyond the last full one.
    least = -(-contexts[largest] // BLOCK_TOKENS) + 2
    if override is None:
        return max(least, round(fraction * sum(contexts.values()) / BLOCK_TOKENS))
    if override < least:
        raise WorkloadError(
            f"--num-gpu-blocks-override {override}: session {largest} alone needs {least} blocks "
            f"({contexts[largest]:,} tokens); give more blocks or a smaller --token-scale"
        )
    return override
