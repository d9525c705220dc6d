"""One comparison on a real engine: the same scripts through a vLLM server per policy, one after
the other. For the policy cachewise a predictor with its store runs beside the server.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cachewise_bench.agents import Request, Server, run_agents
from cachewise_bench.measure import PolicyResult, summarise
from cachewise_bench.script import Script
from cachewise_bench.servers import (
    PredictorAddress,
    Process,
    free_port,
    predictor_command,
    predictor_ready,
    running,
)
from cachewise_bench.vllm_server import (
    EngineSettings,
    engine_command,
    engine_environ,
    engine_ready,
)
from cachewise_bench.watch import EngineSampler, EventListener, Sample, in_background, scrape

POLICIES = ("stock", "cachewise")
SETTLE_S = 5.0
"""How long the last events and forecasts may be under way after the last request."""


@dataclass(frozen=True)
class Limits:
    """Times of a run, in seconds."""

    start_s: float
    """A server that is not ready after this has failed."""
    request_s: float
    kill_predictor_after_s: float | None = None
    """The fault drill: SIGKILL to the predictor this long after the first request."""


@dataclass(frozen=True)
class PolicyRun:
    """All that is known about one policy's run."""

    policy: str
    result: PolicyResult
    requests: tuple[Request, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class _Services:
    """A policy's servers, ready. The last two are None for stock."""

    base_url: str
    engine_metrics_url: str | None
    predictor: tuple[Process, PredictorAddress] | None


async def run_policy(
    policy: str,
    settings: EngineSettings,
    scripts: Sequence[Script],
    limits: Limits,
    logs: Path,
    on_request: Callable[[Request], None],
) -> PolicyRun:
    """Starts the policy's servers, runs the scripts through them and stops the servers.

    Raises ServerError when a server does not start or dies.
    """
    events = EventListener()
    try:
        async with _services(policy, settings, events.endpoint, limits, logs) as services:
            sampler = EngineSampler(services.base_url, events.count)
            server = Server(services.base_url, settings.served_name, limits.request_s)
            async with in_background(
                events.listen(), sampler.sample(), _fault_drill(services, limits)
            ):
                requests = await run_agents(server, scripts, on_request)
                reported, delivered = await _counters(services, requests)
                result = summarise(requests, events.count, reported, delivered)
    finally:
        events.close()
    return PolicyRun(policy, result, tuple(requests), tuple(sampler.samples))


@asynccontextmanager
async def _services(
    policy: str, settings: EngineSettings, events: str, limits: Limits, logs: Path
) -> AsyncIterator[_Services]:
    """The servers of a policy; gone with all their children at the end."""
    if policy == "stock":
        async with _engine(policy, settings, events, None, limits, logs) as base_url:
            yield _Services(base_url, None, None)
        return
    command = predictor_command(logs / "predictor-data")
    with running("the predictor", command, logs / "predictor.log", {}) as predictor:
        address = await predictor_ready(predictor, limits.start_s)
        metrics_port = free_port()
        hook = {"predictor": address.grpc, "metrics_port": metrics_port}
        async with _engine(policy, settings, events, hook, limits, logs) as base_url:
            metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
            yield _Services(base_url, metrics_url, (predictor, address))


@asynccontextmanager
async def _engine(
    policy: str,
    settings: EngineSettings,
    events: str,
    hook: dict[str, object] | None,
    limits: Limits,
    logs: Path,
) -> AsyncIterator[str]:
    """A vLLM server that answers; yields its address."""
    port = free_port()
    command = engine_command(settings, port, events, hook)
    name, log = f"the vLLM server ({policy})", logs / f"vllm-{policy}.log"
    with running(name, command, log, engine_environ(os.environ)) as process:
        base_url = f"http://127.0.0.1:{port}"
        await engine_ready(process, base_url, limits.start_s)
        yield base_url
        process.check()


async def _fault_drill(services: _Services, limits: Limits) -> None:
    if services.predictor and limits.kill_predictor_after_s is not None:
        await asyncio.sleep(limits.kill_predictor_after_s)
        os.kill(services.predictor[0].popen.pid, signal.SIGKILL)


async def _counters(
    services: _Services, requests: Sequence[Request]
) -> tuple[int | None, int | None]:
    """(tool calls that the predictor counted, forecasts that the engine received), settled."""
    if services.predictor is None or services.engine_metrics_url is None:
        return None, None
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    calls = sum(r.tool_calls for r in requests)
    answered = sum(not r.error for r in requests)
    while True:
        reported = await _counter(
            f"http://{services.predictor[1].http}/metrics",
            "cachewise_predictor_tool_calls_total",
        )
        delivered = await _counter(
            services.engine_metrics_url, "cachewise_forecasts_received_total"
        )
        if asyncio.get_running_loop().time() > deadline or (
            (reported or 0) >= calls and (delivered or 0) >= answered
        ):
            return reported, delivered
        await asyncio.sleep(0.25)


async def _counter(url: str, name: str) -> int | None:
    values = await scrape(url)
    return None if values is None else int(values.get(name, 0))
