"""Memory and store in step, with a real Valkey that is killed, wiped and brought back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest
from cachewise_predictor import learner, sync
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.events import Wait
from cachewise_predictor.model import Model
from cachewise_predictor.model_file import to_bytes
from cachewise_predictor.service import Predictor
from cachewise_predictor.store import START, Pointer, Store
from cachewise_predictor.sync import StoreSync
from redis.asyncio import Redis

from .conftest import KEY, Clock, ended, interval, make_predictor, sample, started


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds in quick succession; the predictor's clock stands still, so every round is due."""
    monkeypatch.setattr(sync, "REFRESH_S", 0.0)
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


async def test_a_finished_wait_reaches_the_model_and_the_stored_model(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1)
        assert sample(predictor, "model_samples") == 1
        assert sample(predictor, "store_up") == 1
    successor = make_predictor()
    async with running(valkey, successor):
        assert successor.model.version == predictor.model.version
        assert sample(successor, "model_info", version=predictor.model.version) == 1


async def test_open_intervals_and_what_was_seen_survive_a_crash(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    batch = [ended("t0", 30.0), started("t1", 20.0), ended("t1", 10.0)]
    async with running(valkey, predictor):
        predictor.report(batch)
        await eventually(lambda: len(predictor.journal) == 0 and predictor.model.samples == 1)
    successor = make_predictor(Clock(predictor.clock() + 5))
    async with running(valkey, successor):
        forecast = successor.forecast(KEY)
        assert (forecast.turn, forecast.elapsed_s) == ("t1", 15.0)
        successor.report(batch)  # the client had no answer, and sends it again
        assert sample(successor, "duplicate_events_total") == 3
        successor.report([started("t2", 3.0)])
        await eventually(lambda: successor.model.samples == 2)
        assert sample(successor, "wait_seconds_sum") == 12.0


async def test_serving_goes_on_without_the_store_and_nothing_is_lost_or_counted_twice(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor) as link:
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1)
        kill(valkey)
        for number in range(1, 20):
            turn_over(predictor, number)
        await eventually(lambda: not link.is_up)
        assert sample(predictor, "store_up") == 0
        predictor.report([ended("t20", 1.0)])
        assert predictor.forecast(KEY).forecast is not None
        valkey.ensure_running()
        await eventually(lambda: link.is_up and predictor.model.samples == 20)
        assert sample(predictor, "intervals_total", end="finished") == 20


async def test_an_embedded_store_that_dies_is_started_again(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor, valkey.ensure_running) as link:
        kill(valkey)
        turn_over(predictor, 0)
        await eventually(lambda: link.is_up and predictor.model.samples == 1)


async def test_a_store_that_is_away_at_the_start_is_caught_up_with(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        predictor.report([ended("t1", 1.0)])
        await eventually(lambda: predictor.model.samples == 1)
    kill(valkey)
    late = make_predictor()
    async with running(valkey, late) as link:
        assert not link.is_up
        assert late.forecast(KEY).forecast is None
        valkey.ensure_running()
        await eventually(lambda: late.forecast(KEY).forecast is not None)
        await eventually(lambda: late.model.samples == 1)


async def test_a_wiped_store_gets_the_model_back(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1)
        redis, store = Redis.from_url(valkey.url), Store(valkey.url)
        await redis.flushall()
        async with asyncio.timeout(20):
            while await store.pointer() is None:
                await asyncio.sleep(0.01)
        turn_over(predictor, 1)
        await eventually(lambda: predictor.model.samples == 2)
        await redis.aclose()
        await store.close()


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
        await eventually(lambda: lost == 1 and predictor.model.samples == 1)
        turn_over(predictor, 1)
        await eventually(lambda: predictor.model.samples == 2)
        assert lost == 2


async def test_two_predictors_on_one_store_learn_from_each_other(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    other = make_predictor()
    async with running(valkey, predictor), running(valkey, other):
        turn_over(predictor, 0)
        await eventually(lambda: other.model.samples == 1)
        turn_over(other, 5)
        await eventually(lambda: predictor.model.version == other.model.version != "prior")
        await eventually(lambda: predictor.model.samples == other.model.samples == 2)


async def test_a_newly_trained_model_is_adopted_while_serving(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    trained = Model().learn(interval(80.0, "Bash") for _ in range(100))
    store = Store(valkey.url)
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1)
        position = await store.last_position()
        pointer = Pointer(trained.version, 1, position)
        assert await store.publish_model(pointer, to_bytes(trained))
        await eventually(lambda: predictor.model.version == trained.version)
    await store.close()


@pytest.mark.parametrize("blob", [b"", b"broken"])
async def test_a_broken_model_is_refused_the_present_one_stays_and_replaces_it(
    valkey: EmbeddedStore, predictor: Predictor, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "CHECKPOINT_S", 0.0)
    store = Store(valkey.url)
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1)
        await store.publish_model(Pointer("bad", 7, await store.last_position()), blob)
        await eventually(lambda: sample(predictor, "refused_models_total") == 1)
        assert predictor.model.samples == 1
        turn_over(predictor, 1)
        await eventually(lambda: predictor.model.samples == 2)
        async with asyncio.timeout(20):
            while (await store.pointer() or ("",))[0] != predictor.model.version:
                await asyncio.sleep(0.01)
    await store.close()


async def test_a_large_model_does_not_change_for_every_wait(
    valkey: EmbeddedStore, predictor: Predictor
) -> None:
    trained = Model().learn(interval(1.0, wait=Wait.HUMAN) for _ in range(1_000))
    store = Store(valkey.url)
    await store.publish_model(Pointer(trained.version, 1, START), to_bytes(trained))
    await store.close()
    async with running(valkey, predictor):
        turn_over(predictor, 0)
        await eventually(lambda: predictor.model.samples == 1_001)  # the first new one is due
        for number in range(1, 6):
            turn_over(predictor, number)
        await asyncio.sleep(0.3)
        assert predictor.model.samples == 1_001
        for number in range(6, 20):
            turn_over(predictor, number)
        await eventually(lambda: predictor.model.samples >= 1_012)


def kill(valkey: EmbeddedStore) -> None:
    assert valkey._server is not None and valkey._server._process is not None
    os.kill(valkey._server._process.pid, signal.SIGKILL)
    valkey._server._process.wait()
