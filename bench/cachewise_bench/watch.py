"""Watches an engine while it runs: its events of the KV cache, and its metrics.

Evictions are counted from vLLM's BlockRemoved events, for every policy alike: one for each cached
block that was given away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families
from zmq.constants import SocketOption, SocketType

SAMPLE_PERIOD_S = 1.0


@dataclass(frozen=True)
class Sample:
    """The engine at one moment."""

    at_s: float
    kv_usage: float
    waiting_requests: float
    evicted_blocks: int


@dataclass
class EvictionCount:
    """Counts vLLM's BlockRemoved events from the messages of its publisher."""

    evicted_blocks: int = 0
    lost_messages: int = 0
    _next: int | None = field(default=None, repr=False)

    def take(self, sequence: int, payload: bytes) -> None:
        """Takes one message: its number and its msgpack batch of events."""
        if self._next is not None and sequence > self._next:
            self.lost_messages += sequence - self._next
        self._next = sequence + 1
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockRemoved":
                self.evicted_blocks += len(event["block_hashes"])


class EventListener:
    """The socket that vLLM's event publisher connects to."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(SocketType.SUB)
        self._socket.set_hwm(0)
        self._socket.setsockopt(SocketOption.SUBSCRIBE, b"")
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.count = EvictionCount()

    async def listen(self) -> None:
        """Counts until it is cancelled."""
        while True:
            _topic, sequence, payload = await self._socket.recv_multipart()
            self.count.take(int.from_bytes(sequence, "big"), payload)

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


class EngineSampler:
    """Notes the engine's state once a second, from vLLM's /metrics."""

    def __init__(self, base_url: str, events: EvictionCount) -> None:
        self._url = f"{base_url}/metrics"
        self._events = events
        self.samples: list[Sample] = []

    async def sample(self) -> None:
        """Samples until it is cancelled; a scrape that fails is left out."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while True:
            values = await scrape(self._url)
            if values is not None:
                self.samples.append(
                    Sample(
                        at_s=loop.time() - begin,
                        kv_usage=values.get("vllm:kv_cache_usage_perc", 0.0),
                        waiting_requests=values.get("vllm:num_requests_waiting", 0.0),
                        evicted_blocks=self._events.evicted_blocks,
                    )
                )
            await asyncio.sleep(SAMPLE_PERIOD_S)


async def scrape(url: str) -> Mapping[str, float] | None:
    """The values of a Prometheus page, summed over labels; None when it cannot be had."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(url) as response,
        ):
            if response.status != 200:
                return None
            families = list(text_string_to_metric_families(await response.text()))
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    values: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


@asynccontextmanager
async def in_background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs coroutines beside the body and cancels them at its end."""
    tasks = [asyncio.create_task(c) for c in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
