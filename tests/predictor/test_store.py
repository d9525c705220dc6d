"""The store's verbs against a real Valkey."""

from __future__ import annotations

import asyncio

import pytest
from cachewise_predictor import store as module
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.errors import StoreError
from cachewise_predictor.events import Interval, OpenInterval, SessionKey, ToolCall, Wait
from cachewise_predictor.evidence import PastWait
from cachewise_predictor.sessions import TTL_S, SessionState
from cachewise_predictor.store import MODELS_KEPT, START, Batch, Pointer, Store
from redis.asyncio import Redis

from .conftest import KEY, interval

STATE = SessionState(
    touched_at=7.5,
    open=OpenInterval(
        "t1", 5.25, Wait.TOOL, (ToolCall("Bash", '{"command": "é\\\\x00"}'), ToolCall("Réad\x00"))
    ),
    seen=(1, 4_294_967_295),
    unmatched_start=("t0", 1.5),
    ended_at=None,
    recent=(PastWait((1, 2, 65_535), 4.5),),
)


def batch(
    number: int, sessions: dict[SessionKey, SessionState | None], *intervals: Interval
) -> Batch:
    return Batch("w1", number, sessions, intervals)


async def test_sessions_come_back_as_they_were_the_one_idle_longest_first(store: Store) -> None:
    other = SessionKey('a:{"}', "ü")
    await store.write(batch(1, {KEY: STATE, other: SessionState(3.0, ended_at=2.0)}))
    assert await store.load_sessions() == [(other, SessionState(3.0, ended_at=2.0)), (KEY, STATE)]
    await store.write(batch(2, {KEY: None}))
    assert [key for key, _ in await store.load_sessions()] == [other]


async def test_intervals_come_back_in_order_and_once(store: Store) -> None:
    intervals = [interval(1.5, "Bash"), interval(2.0, wait=Wait.HUMAN, is_finished=False)]
    await store.write(batch(1, {KEY: STATE}, *intervals))
    position, read = await store.read_intervals(START)
    assert read == intervals
    assert await store.read_intervals(position) == (position, [])
    assert await store.last_position() == position


async def test_a_writer_can_see_whether_an_unanswered_batch_was_written(store: Store) -> None:
    assert await store.last_written("w1") == 0
    await store.write(batch(3, {KEY: STATE}))
    assert await store.last_written("w1") == 3


async def test_old_sessions_and_those_over_the_bound_are_purged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[SessionKey, SessionState | None] = {
        SessionKey("acme", f"s{n}"): SessionState(float(n)) for n in range(10)
    }
    await store.write(batch(1, states))
    await store.purge_sessions(TTL_S + 2)
    assert [state.touched_at for _, state in await store.load_sessions()] == list(range(3, 10))
    monkeypatch.setattr(module, "MAX_STORED_SESSIONS", 4)
    await store.purge_sessions(0.0)
    assert [state.touched_at for _, state in await store.load_sessions()] == list(range(6, 10))


async def test_a_model_and_its_pointer_move_together_and_old_models_are_deleted(
    store: Store, valkey: EmbeddedStore
) -> None:
    assert await store.pointer() is None
    for number in range(MODELS_KEPT + 3):
        pointer = Pointer(f"v{number}", 0, f"{number}-0")
        assert await store.publish_model(pointer, b"blob %d" % number)
        assert await store.pointer() == pointer
    assert await store.load_model(pointer.version) == b"blob %d" % number
    assert await store.load_model("v0") == b""
    redis = Redis.from_url(valkey.url)
    blobs = await redis.keys("{cachewise}:model:*")
    await redis.aclose()
    assert len(blobs) == MODELS_KEPT


@pytest.mark.parametrize("late", [Pointer("old", 4, "9-9"), Pointer("old", 5, "1-9")])
async def test_a_model_of_an_earlier_training_or_position_is_not_published(
    store: Store, late: Pointer
) -> None:
    current = Pointer("new", 5, "10-0")
    assert await store.publish_model(current, b"x")
    assert not await store.publish_model(late, b"y")
    assert await store.pointer() == current
    assert await store.publish_model(Pointer("next", 5, "10-1"), b"z")


async def test_models_published_at_the_same_time_leave_the_newest_current(store: Store) -> None:
    pointers = [Pointer(f"v{n}", n % 3, f"{n}-0") for n in range(12)]
    await asyncio.gather(*(store.publish_model(pointer, b"x") for pointer in pointers))
    assert await store.pointer() == pointers[11]


async def test_foreign_records_are_skipped(store: Store, valkey: EmbeddedStore) -> None:
    redis = Redis.from_url(valkey.url)
    await redis.xadd("{cachewise}:intervals", {"other": "x"})
    await redis.xadd("{cachewise}:intervals", {"interval": '{"wait": "coffee"}'})
    await redis.hset("{cachewise}:sessions", "no json", "{}")
    await redis.zadd("{cachewise}:sessions:touched", {"no json": 1.0, '["a", "gone"]': 2.0})
    await redis.hset("{cachewise}:model", mapping={"version": "v", "generation": "x"})
    await redis.aclose()
    position, intervals = await store.read_intervals(START)
    assert (intervals, position == START) == ([], False)
    assert await store.load_sessions() == []
    assert await store.pointer() is None


async def test_a_store_that_does_not_answer_is_a_store_error() -> None:
    store = Store("redis://127.0.0.1:1/0")
    with pytest.raises(StoreError, match="does not answer"):
        await store.ping()
    await store.close()


def test_a_malformed_url_names_the_option() -> None:
    with pytest.raises(StoreError, match="--redis-url"):
        Store("redis://host:port/")
