"""Open-loop load: requests go out at fixed times, whether or not earlier ones were answered.

A latency counts from the time at which the request was due, so a server that stalls is not spared
the requests of the time of its stall.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import grpc
import numpy as np
from cachewise_predictor.events import Interval
from cachewise_proto import predictor_pb2 as pb

from cachewise_bench.serving.workload import TENANT

_TIMEOUT_S = 30.0
_MOST_AGE_S = 600.0
_DRAWS = 1_000


@dataclass
class Latencies:
    """Seconds from when a request was due to its answer; failed: those without an answer."""

    due_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def summary(self) -> dict[str, float]:
        times = np.array(self.seconds or [0.0]) * 1_000
        p50, p99 = np.percentile(times, [50, 99])
        return {
            "requests": len(self.seconds),
            "failed": self.failed,
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "max_ms": float(times.max()),
        }


async def at_rate(
    per_s: float, is_over: Callable[[float], bool], send: Callable[[], Awaitable[object]]
) -> Latencies:
    """Calls `send` at this rate until is_over(elapsed seconds), and waits for all answers."""
    loop, latencies = asyncio.get_running_loop(), Latencies()
    start, tasks = loop.time(), set[asyncio.Task[None]]()

    async def one(due: float) -> None:
        try:
            await send()
        except grpc.RpcError:
            latencies.failed += 1
            return
        latencies.due_s.append(due - start)
        latencies.seconds.append(loop.time() - due)

    number = 0
    while not is_over(loop.time() - start):
        due = start + number / per_s
        if (ahead_s := due - loop.time()) > 0:
            await asyncio.sleep(ahead_s)
        task = asyncio.create_task(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks)
    return latencies


class ForecastLoad:
    """Asks for the forecasts of `size` sessions at a time, drawn from those that wait.

    The draws are made beforehand: an engine knows what it holds, and the time that it takes to
    draw and to write it down is none of the predictor's.
    """

    def __init__(self, stub: Any, names: Sequence[str], size: int) -> None:
        rng = random.Random(0)
        requests = [_request(rng.sample(names, size)) for _ in range(_DRAWS)]
        self._stub, self._requests = stub, cycle(requests)

    async def send(self) -> None:
        answer = await self._stub.ForecastReuse(next(self._requests), timeout=_TIMEOUT_S)
        assert all(forecast.HasField("forecast") for forecast in answer.forecasts)


def _request(names: Sequence[str]) -> pb.ForecastReuseRequest:
    queries = [pb.ReuseQuery(tenant=TENANT, session=name) for name in names]
    return pb.ForecastReuseRequest(queries=queries)


class EventLoad:
    """Sessions that take turns: the end of one with its calls, then the start of the next.

    A turn's end is reported as old as a recorded wait, so that waits are as long as those.
    """

    def __init__(
        self,
        stub: Any,
        intervals: Sequence[Interval],
        names: Sequence[str],
        batch: int,
    ) -> None:
        self._stub, self._intervals, self._names, self._batch = stub, intervals, names, batch
        self._next = 0
        self.reported = self.closed = 0
        """Events answered, and intervals that they closed."""

    async def send(self) -> None:
        events = [self._make(self._next + n) for n in range(self._batch)]
        self._next += self._batch
        closed = sum(event.HasField("turn_started") for event in events)
        await self._stub.ReportEvents(pb.ReportEventsRequest(events=events), timeout=_TIMEOUT_S)
        self.reported += len(events)
        self.closed += closed

    def _make(self, number: int) -> pb.Event:
        """All sessions end a turn, then all start the next, and so on."""
        lap, place = divmod(number, len(self._names))
        event = pb.Event(tenant=TENANT, session=self._names[place], turn=str((lap + 1) // 2))
        if lap % 2:
            event.turn_started.SetInParent()
            return event
        interval = self._intervals[number % len(self._intervals)]
        event.age_seconds = min(interval.seconds, _MOST_AGE_S)
        event.turn_ended.outcome = pb.OUTCOME_TOOL
        for call in interval.calls:
            event.turn_ended.tool_calls.add(name=call.name, arguments=call.arguments)
        return event


class Replica:
    """Watches sessions as an engine does; forecasts: those that it was sent."""

    def __init__(self, stub: Any, names: Sequence[str]) -> None:
        self._stub, self._names = stub, names
        self.forecasts = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        sessions = [pb.ReuseQuery(tenant=TENANT, session=name) for name in self._names]
        stream = self._stub.WatchForecasts()
        await stream.write(pb.WatchForecastsRequest(replica="bench", sessions_added=sessions))
        async for message in stream:
            self.forecasts += sum(forecast.HasField("forecast") for forecast in message.forecasts)
