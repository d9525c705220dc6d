"""Intervals of the stream become models, with a real Valkey."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from cachewise_predictor import trial as module
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.events import Interval, ToolCall, Wait
from cachewise_predictor.learner import Learner
from cachewise_predictor.model import Group, Model
from cachewise_predictor.model_file import from_bytes, to_bytes
from cachewise_predictor.published import ModelInfo, Pointer
from cachewise_predictor.store import Batch, Store
from cachewise_predictor.training import Schedule
from cachewise_predictor.versions import roll_back
from redis.asyncio import Redis

from .conftest import interval

EAGER = Schedule(period_s=3_600.0, least_new=20, least_pause_s=0.0, most_busy=100.0)
BASH = Group("acme", Wait.TOOL, "Bash")
COMMANDS = {"true": 0.3, "git push": 3.0, "npm test": 20.0, "make": 90.0}
"""Median waits in seconds."""

Waits = Callable[[str], float]
rng = random.Random(0)


@pytest.fixture(autouse=True)
def same_waits() -> None:
    rng.seed(0)


def usual(command: str) -> float:
    return COMMANDS[command] * rng.lognormvariate(0.0, 0.6)


def tenfold(command: str) -> float:
    return 10 * usual(command)


def anything(command: str) -> float:
    return float(10 ** rng.uniform(-2, 3.5))


def bash(count: int, waits: Waits = usual, tenant: str = "acme") -> list[Interval]:
    commands = [rng.choice(list(COMMANDS)) for _ in range(count)]
    return [
        interval(waits(c), ToolCall("Bash", json.dumps({"command": c})), tenant=tenant)
        for c in commands
    ]


async def report(store: Store, intervals: list[Interval]) -> None:
    await store.write(Batch("w", 1, {}, intervals))


async def started(store: Store, schedule: Schedule = EAGER) -> Learner:
    learner = Learner(store, time.time, schedule)
    await learner.start()
    return learner


async def settle(learner: Learner) -> None:
    """Rounds until everything is taken, and every training that is due has ended."""
    async with asyncio.timeout(50):
        while await learner.round() or learner._trial is not None:
            await asyncio.sleep(0.01)


async def current(store: Store) -> Model:
    pointer = await store.pointer()
    assert pointer is not None
    return from_bytes(await store.load_model(pointer.version))


def median(model: Model, command: str = "make") -> float:
    call = ToolCall("Bash", json.dumps({"command": command}))
    return model.forecast("acme", Wait.TOOL, (call,)).quantiles[0].wait_s


async def test_the_first_intervals_make_the_first_model(store: Store) -> None:
    learner = await started(store)
    await report(store, bash(10))
    await settle(learner)
    assert await store.pointer() is None
    await report(store, bash(30))
    await settle(learner)
    model, pointer = await current(store), await store.pointer()
    assert pointer is not None and pointer.position == await store.last_position()
    info, status = await store.model_info(pointer.version), await store.status()
    assert info is not None and info.reason == "first"
    assert status is not None and status.promotions == 1
    assert (status.window, status.lag) == (40, 0)
    assert model.samples == 40 - status.reserved


async def test_an_interval_delivered_twice_counts_once(store: Store) -> None:
    learner = await started(store)
    intervals = bash(40)
    await report(store, intervals)
    await report(store, intervals[:15])
    await settle(learner)
    status = await store.status()
    assert status is not None
    assert (status.window, status.duplicates) == (40, 15)
    assert (await current(store)).samples == 40 - status.reserved


async def test_anything_new_is_learned_after_the_period(store: Store) -> None:
    learner = await started(
        store, Schedule(period_s=0.0, least_new=1_000, least_pause_s=0.0, most_busy=100.0)
    )
    await report(store, bash(3))
    await settle(learner)
    assert await store.pointer() is not None


async def test_a_tool_that_becomes_ten_times_slower_is_seen_and_followed(store: Store) -> None:
    learner = await started(store)
    await report(store, bash(400))
    await settle(learner)
    before = median(await current(store))
    sent = 0
    while sent < 100:
        sent += 10
        await report(store, bash(10, tenfold))
        await settle(learner)
        status, pointer = await store.status(), await store.pointer()
        assert status is not None and pointer is not None
        info = await store.model_info(pointer.version)
        if info is not None and info.reason == "drift":
            break
    assert status.drifts == 1
    assert info is not None and set(info.changes) == {BASH}
    assert 5 < median(await current(store)) / before < 20
    assert status.window < sent + 60
    successor = await started(store)
    assert len(successor._window) == status.window


async def test_random_waits_are_refused_and_never_learned(store: Store) -> None:
    learner = await started(store)
    await report(store, bash(400))
    await settle(learner)
    pointer = await store.pointer()
    assert pointer is not None
    before = {command: median(await current(store), command) for command in COMMANDS}
    await report(store, bash(300, anything))
    await settle(learner)
    assert await store.pointer() == pointer
    status = await store.status()
    assert status is not None and status.refusals == status.spoiled == 1
    assert status.window < 420
    await report(store, bash(100))
    await settle(learner)
    for each in (learner, await started(store)):
        assert len(each._window) < 530
    model = await current(store)
    assert model.version != pointer.version
    for command, wait in before.items():
        assert median(model, command) == pytest.approx(wait, rel=0.5)


async def test_what_another_took_and_did_not_acknowledge_is_taken_again(store: Store) -> None:
    first = await started(store)
    await report(store, bash(30))
    await settle(first)
    intervals = bash(15)
    await report(store, intervals)
    assert len((await store.take_intervals(is_again=False)).intervals) == 15
    second = await started(store)
    assert len(second._window) == 30
    await settle(second)
    assert len(second._window) == 45
    assert await store.unread_from() > await store.last_position()


@pytest.mark.parametrize("is_new_trainer", [False, True])
async def test_a_broken_stored_model_is_replaced_by_the_last_good_one(
    store: Store, is_new_trainer: bool
) -> None:
    learner = await started(store)
    await report(store, bash(40))
    await settle(learner)
    good = await store.pointer()
    assert good is not None
    broken = Pointer("broken", good.generation + 1)
    info = ModelInfo("traces", 0.0)
    assert await store.publish_model(broken, b"broken", info, good.generation)
    await settle(await started(store) if is_new_trainer else learner)
    pointer = await store.pointer()
    assert pointer is not None and pointer.version == good.version
    assert (await current(store)).version == good.version


async def test_a_model_is_dropped_if_another_was_published_since_its_training_began(
    store: Store,
) -> None:
    learner = await started(store)
    await report(store, bash(40))
    await learner.round()
    assert learner._trial is not None
    other = Model().learn(bash(5))
    info = ModelInfo("traces", 0.0)
    assert await store.publish_model(Pointer(other.version, 1), to_bytes(other), info, None)
    await settle(learner)
    pointer = await store.pointer()
    assert pointer is not None and pointer.version == other.version


async def test_a_training_that_fails_is_counted_and_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = await started(store)
    build = module.build

    def fail(intervals: list[Interval]) -> Model:
        raise MemoryError

    monkeypatch.setattr(module, "build", fail)
    await report(store, bash(40))
    await settle(learner)
    monkeypatch.setattr(module, "build", build)
    await report(store, bash(40))
    await settle(learner)
    status = await store.status()
    assert status is not None and (status.failures, status.promotions) == (1, 1)


async def test_what_came_after_the_model_of_a_rollback_is_not_learned(store: Store) -> None:
    learner = await started(store)
    await report(store, bash(40))
    await settle(learner)
    first = await store.pointer()
    assert first is not None
    while await store.pointer() == first:
        await report(store, bash(40))
        await settle(learner)
    await roll_back(store, first.version)
    await settle(learner)
    assert len(learner._window) == len((await started(store))._window) == 40
    pointer = await store.pointer()
    assert pointer is not None and pointer.version == first.version


async def test_after_the_store_was_wiped_it_goes_on(store: Store, valkey: EmbeddedStore) -> None:
    learner = await started(store)
    await report(store, bash(40))
    await settle(learner)
    redis = Redis.from_url(valkey.url)
    await redis.flushall()
    await redis.aclose()
    await report(store, bash(40))
    await settle(learner)
    await settle(learner)
    assert (await current(store)).samples > 50


async def test_waits_of_trace_files_are_learned_but_start_no_training(store: Store) -> None:
    learner = await started(store)
    await store.append_recorded(bash(100))
    await settle(learner)
    assert await store.pointer() is None
    assert len(learner._window) == 100
    await report(store, [replace(i, turn=f"live {n}") for n, i in enumerate(bash(40))])
    await settle(learner)
    assert (await current(store)).samples > 120
