"""Memory and store in step, with a real Valkey that is killed, wiped and brought back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest
from cachewise_predictor import sync
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.errors import StoreError
from cachewise_predictor.events import Position
from cachewise_predictor.service import Predictor
from cachewise_predictor.store import Store
from cachewise_predictor.sync import StoreSync

from .conftest import KEY, Clock, ended, make_predictor, sample, started


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds in quick succession; the predictor's clock stands still, so every round is due."""
    monkeypatch.setattr(sync, "_PURGE_S", 0.0)
    monkeypatch.setattr(sync, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(sync, "_LONGEST_PAUSE_S", 0.05)


@contextlib.asynccontextmanager
async def running(
    valkey: EmbeddedStore, predictor: Predictor, revive: Callable[[], None] = lambda: None
) -> AsyncIterator[StoreSync]:
    store = Store(valkey.url)
    link = StoreSync(store, predictor, revive)
    await link.start()
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        link.stop()
        await task
        await store.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def turn_over(predictor: Predictor, number: int, wait_s: float = 5.0) -> None:
    """Turn `number` ended wait_s ago, and the next one starts now."""
    predictor.report([ended(f"t{number}", wait_s), started(f"t{number + 1}")])


async def stored(valkey: EmbeddedStore) -> list[float]:
    """The seconds of the intervals in the stream."""
    store = Store(valkey.url)
    after = Position((await store.last_position()).ms + 1, 0)
    found = await store.newest_intervals(after, 1_000)
    await store.close()
    return [one.interval.seconds for one in found]


async def stored_eventually(valkey: EmbeddedStore, count: int) -> list[float]:
    """Once there are so many; the store may be on its way back."""
    found = list[float]()
    async with asyncio.timeout(20):
        while len(found) < count:
            with contextlib.suppress(StoreError):
                found = await stored(valkey)
            await asyncio.sleep(0.01)
    return found


async def test_a_finished_wait_reaches_the_stream(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        assert await stored_eventually(valkey, 1) == [5.0]
        assert sample(predictor, "store_up") == 1


async def test_open_intervals_and_what_was_seen_survive_a_crash(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    batch = [ended("t0", 30.0), started("t1", 20.0), ended("t1", 10.0)]
    async with running(valkey, predictor):
        predictor.report(batch)
        await stored_eventually(valkey, 1)
    successor = make_predictor(Clock(predictor.clock() + 5))
    async with running(valkey, successor):
        forecast = successor.forecast(KEY)
        assert (forecast.turn, forecast.elapsed_s) == ("t1", 15.0)
        successor.report(batch)  # the client had no answer, and sends it again
        assert sample(successor, "duplicate_events_total") == 3
        successor.report([started("t2", 3.0)])
        assert await stored_eventually(valkey, 2) == [10.0, 12.0]


async def test_serving_goes_on_without_the_store_and_nothing_is_lost_or_counted_twice(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor) as link:
        turn_over(predictor, 0)
        await stored_eventually(valkey, 1)
        kill(valkey)
        for number in range(1, 20):
            turn_over(predictor, number)
        await eventually(lambda: not link.is_up)
        assert sample(predictor, "store_up") == 0
        predictor.report([ended("t20", 1.0)])
        assert predictor.forecast(KEY).forecast is not None
        valkey.ensure_running()
        await eventually(lambda: link.is_up)
        assert len(await stored_eventually(valkey, 20)) == 20
        assert sample(predictor, "intervals_total", end="finished") == 20


async def test_an_embedded_store_that_dies_is_started_again(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor, valkey.ensure_running) as link:
        kill(valkey)
        turn_over(predictor, 0)
        await eventually(lambda: link.is_up)
        await stored_eventually(valkey, 1)


async def test_a_store_that_is_away_at_the_start_is_caught_up_with(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        predictor.report([ended("t1", 1.0)])
    kill(valkey)
    late = make_predictor()
    async with running(valkey, late) as link:
        assert not link.is_up
        assert late.forecast(KEY).forecast is None
        valkey.ensure_running()
        await eventually(lambda: late.forecast(KEY).forecast is not None)


async def test_an_unanswered_batch_that_was_written_is_not_written_again(
    valkey: EmbeddedStore, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, lost = Store.write, 0

    async def write_but_lose_the_answer(self: Store, batch: object) -> None:
        nonlocal lost
        await write(self, batch)  # type: ignore[arg-type]
        lost += 1
        if lost == 1:
            raise sync.StoreError("the answer was lost")

    monkeypatch.setattr(Store, "write", write_but_lose_the_answer)
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: lost == 1)
        turn_over(predictor, 1)
        await stored_eventually(valkey, 2)
        assert (lost, len(await stored(valkey))) == (2, 2)


def kill(valkey: EmbeddedStore) -> None:
    assert valkey._server is not None and valkey._server._process is not None
    os.kill(valkey._server._process.pid, signal.SIGKILL)
    valkey._server._process.wait()
