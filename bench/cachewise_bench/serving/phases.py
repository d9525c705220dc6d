"""The phases of the load on a predictor that serves a trained model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from cachewise_predictor.events import Interval
from cachewise_proto.predictor_pb2_grpc import PredictorServiceStub

from cachewise_bench.serving.load import EventLoad, ForecastLoad, Latencies, Replica, at_rate
from cachewise_bench.serving.server import PredictorProcess

QUERIED, REQUESTS_PER_S = 64, 200
EVENTS_PER_S, BATCH = 3_000, 30
WAITING_SESSIONS, REPORTING_SESSIONS = 1_024, 3_000
TRAINED_BY = 0.15
"""New intervals that surely make the trainer train, as a share of its window."""

_SETTLE_S = 5.0
"""Time for a new model to be adopted, and for the first use of everything."""

_LONGEST_TRAINING_S = 600.0


async def run_phases(
    server: PredictorProcess,
    intervals: Sequence[Interval],
    seconds: float,
    begin: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of each phase. begin: is told its name."""
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = PredictorServiceStub(channel)
        waiting = [f"waiting-{n}" for n in range(WAITING_SESSIONS)]
        opening = EventLoad(stub, intervals, waiting, batch=64)
        for _ in range(len(waiting) // 64):
            await opening.send()
        forecasts = ForecastLoad(stub, waiting, QUERIED)
        await at_rate(REQUESTS_PER_S, lambda s: s > _SETTLE_S, forecasts.send)
        begin("forecasts")
        alone, alone_cpu = await _with_cpu(server, forecasts, seconds)
        names = [f"reporting-{n}" for n in range(REPORTING_SESSIONS)]
        load = EventLoad(stub, intervals, names, BATCH)
        begin("forecasts during a training")
        training, during = await _during_training(server, forecasts, load)
        begin("events")
        events = await _events(server, load, Replica(stub, names), seconds)
    p99_ratio = during.summary()["p99_ms"] / alone.summary()["p99_ms"]
    return {
        "forecasts": alone.summary() | {"cpu_share": alone_cpu},
        "training": training,
        "during_training": during.summary() | {"p99_ratio": p99_ratio},
        "events": events,
    }


async def _with_cpu(
    server: PredictorProcess, load: ForecastLoad, seconds: float
) -> tuple[Latencies, float]:
    """The latencies, and the share of a core that the predictor used."""
    before = server.cpu_s()
    latencies = await at_rate(REQUESTS_PER_S, lambda s: s > seconds, load.send)
    return latencies, (server.cpu_s() - before) / seconds


async def _during_training(
    server: PredictorProcess, load: ForecastLoad, events: EventLoad
) -> tuple[dict[str, float], Latencies]:
    """Enough news for the trainer, then forecasts until its new model has been adopted."""
    before = server.trainer().get("trainings", 0.0)
    enough = TRAINED_BY * server.trainer().get("window", 0.0)
    await at_rate(EVENTS_PER_S / BATCH, lambda s: events.closed > enough, events.send)
    loop = asyncio.get_running_loop()
    asked_at, ended_at = loop.time(), math.inf

    def is_over(elapsed_s: float) -> bool:
        nonlocal asked_at, ended_at
        if loop.time() > asked_at + 0.5 and math.isinf(ended_at):
            asked_at = loop.time()
            has_ended = server.trainer().get("trainings", 0.0) > before
            ended_at = elapsed_s if has_ended else ended_at
        return elapsed_s > min(ended_at + _SETTLE_S, _LONGEST_TRAINING_S)

    latencies = await at_rate(REQUESTS_PER_S, is_over, load.send)
    status = server.trainer()
    return {
        "cpu_s": status.get("training_seconds", math.inf),
        "intervals": status.get("window", 0.0),
        "trainings": status.get("trainings", 0.0) - before,
    }, latencies


async def _events(
    server: PredictorProcess, load: EventLoad, replica: Replica, seconds: float
) -> dict[str, Any]:
    """Events of sessions that a replica watches, and how far the store is behind them."""
    closed_before, reported_before = load.closed, load.reported
    stored_before, cpu_before = server.stored_intervals(), server.cpu_s()
    lags: list[int] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(1.0)
            stored = await asyncio.to_thread(server.stored_intervals)
            lags.append(max(load.closed - closed_before - (stored - stored_before), 0))

    watcher = asyncio.create_task(watch())
    reader = asyncio.create_task(replica.run())
    latencies = await at_rate(EVENTS_PER_S / BATCH, lambda s: s > seconds, load.send)
    watcher.cancel()
    reader.cancel()
    elapsed_s = max(latencies.due_s, default=0.0) + latencies.seconds[-1]
    return latencies.summary() | {
        "events_per_s": (load.reported - reported_before) / elapsed_s,
        "forecasts_per_s": replica.forecasts / elapsed_s,
        "cpu_share": (server.cpu_s() - cpu_before) / elapsed_s,
        "lag_intervals": lags,
        "is_lag_growing": is_growing(lags),
    }


def is_growing(lags: Sequence[int]) -> bool:
    """Whether the last quarter is behind by clearly more than the second: a tenth of a second."""
    quarter = max(len(lags) // 4, 1)
    early, late = lags[quarter : 2 * quarter], lags[-quarter:]
    return bool(early) and float(np.mean(late) - np.mean(early)) > EVENTS_PER_S / 2 / 10
