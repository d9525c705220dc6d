"""Of several trainers one trains; another takes over when it ends, however it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from cachewise_predictor import store as store_module
from cachewise_predictor import trainer as module
from cachewise_predictor import trial
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.events import Interval
from cachewise_predictor.store import Batch, Store
from cachewise_predictor.trainer import Trainer
from cachewise_predictor.training import Schedule
from redis.asyncio import Redis

from .conftest import interval
from .test_sync import kill

EAGER = Schedule(period_s=0.0, least_new=1, least_pause_s=0.0, most_busy=100.0)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ROUND_S", "_RETRY_S"):
        monkeypatch.setattr(module, name, 0.05)
    for each in (module, store_module):
        monkeypatch.setattr(each, "LEASE_S", 3.0)


class Running:
    """A trainer with a connection of its own."""

    def __init__(self, url: str) -> None:
        self.store = Store(url)
        self.trainer = Trainer(self.store, time.time, EAGER)
        self.task = asyncio.create_task(self.trainer.run())

    async def end(self) -> None:
        self.trainer.stop()
        await self.task
        await self.store.close()


@pytest.fixture
async def run(valkey: EmbeddedStore) -> AsyncIterator[Callable[[], Running]]:
    started = list[Running]()

    def start() -> Running:
        started.append(Running(valkey.url))
        return started[-1]

    yield start
    for running in started:
        if not running.task.done():
            await running.end()


async def learned(store: Store, count: int) -> None:
    """Reports so many intervals and waits until a model has all but the reserved of them."""
    intervals = [interval(1.0, "Bash") for _ in range(count)]
    before = await store.status()
    await store.write(Batch("w", 1, {}, intervals))
    window = (before.window if before else 0) + count
    async with asyncio.timeout(50):
        while True:
            status, pointer = await store.status(), await store.pointer()
            if status and pointer and status.window == window and status.lag == 0:
                samples = window - status.reserved
                if pointer.version.startswith(f"{samples}-"):
                    return
            await asyncio.sleep(0.05)


async def test_one_of_two_trains_and_the_other_takes_over_at_its_end(
    store: Store, run: Callable[[], Running]
) -> None:
    first = run()
    await learned(store, 10)
    second = run()
    await learned(store, 10)
    assert await first.store.renew_lease()
    await first.end()
    await learned(store, 10)
    assert await second.store.renew_lease()


async def test_a_lease_that_was_lost_ends_the_training(
    store: Store, run: Callable[[], Running], valkey: EmbeddedStore
) -> None:
    first = run()
    await learned(store, 10)
    redis = Redis.from_url(valkey.url)
    await redis.set("{cachewise}:trainer:lease", "of another", px=3_000)
    async with asyncio.timeout(20):
        while await redis.get("{cachewise}:trainer:lease") == b"of another":
            await asyncio.sleep(0.05)
    await redis.aclose()
    await learned(store, 10)
    assert await first.store.renew_lease()


async def test_a_store_that_goes_away_and_comes_back_is_learned_from_again(
    store: Store, run: Callable[[], Running], valkey: EmbeddedStore
) -> None:
    run()
    await learned(store, 10)
    kill(valkey)
    await asyncio.sleep(0.5)
    valkey.ensure_running()
    await learned(store, 10)


async def test_an_end_does_not_wait_for_a_training(
    store: Store, run: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def build(intervals: list[Interval]) -> None:
        loop.call_soon_threadsafe(training.set)
        released.wait()

    monkeypatch.setattr(trial, "build", build)
    running = run()
    await store.write(Batch("w", 1, {}, [interval(1.0, "Bash") for _ in range(10)]))
    await training.wait()
    await running.end()
    assert await store.acquire_lease()
    released.set()
