"""The store's verbs against a real Valkey."""

from __future__ import annotations

import asyncio

import pytest
from cachewise_predictor import store as module
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.errors import StoreError
from cachewise_predictor.events import (
    START,
    Interval,
    OpenInterval,
    Position,
    SessionKey,
    ToolCall,
    Wait,
)
from cachewise_predictor.evidence import PastWait
from cachewise_predictor.model import Group
from cachewise_predictor.published import ModelInfo, Pointer
from cachewise_predictor.sessions import TTL_S, SessionState
from cachewise_predictor.store import MAX_LEFT_OUT, MODELS_KEPT, Batch, Store
from cachewise_predictor.training import TrainerStatus
from cachewise_predictor.window import MAX_AGE_S, LeftOut, StoredInterval
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


async def take(store: Store, is_again: bool = False) -> list[Interval]:
    return [stored.interval for stored in (await store.take_intervals(is_again)).intervals]


async def read_all(store: Store) -> list[StoredInterval]:
    after = Position((await store.last_position()).ms + 1, 0)
    return await store.newest_intervals(after, 1_000_000)


async def test_intervals_come_back_in_order_with_their_positions(store: Store) -> None:
    intervals = [interval(1.5, "Bash"), interval(2.0, wait=Wait.HUMAN, is_finished=False)]
    recorded = [interval(0.1, "Read")]
    await store.write(batch(1, {KEY: STATE}, *intervals))
    await store.append_recorded(recorded)
    found = await read_all(store)
    assert [one.interval for one in found] == intervals + recorded
    assert [one.is_live for one in found] == [True, True, False]
    assert found[0].position < found[1].position < found[2].position
    assert found[2].position == await store.last_position()
    assert await store.newest_intervals(found[2].position, 1) == found[1:2]


async def test_the_trainer_takes_each_interval_until_it_acknowledges_it(store: Store) -> None:
    first, second = interval(1.0, "Bash"), interval(2.0, "Bash")
    assert await store.unread_from() == Position(0, 1)
    await store.write(batch(1, {}, first, second))
    assert await store.lag() == 2
    taken = await store.take_intervals(is_again=False)
    assert [one.interval for one in taken.intervals] == [first, second]
    assert await store.unread_from() == taken.intervals[0].position
    assert (await take(store), await take(store, is_again=True)) == ([], [first, second])
    await store.acknowledge(taken)
    assert (await take(store), await take(store, is_again=True)) == ([], [])
    assert await store.unread_from() > await store.last_position()
    assert await store.lag() == 0


@pytest.mark.parametrize("told", [{}, {"lag": None}, {"lag": 7}])
async def test_a_lag_that_the_server_does_not_tell_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch, told: dict[str, int | None]
) -> None:
    """Redis 6.2 has no such field; later ones say nil when they do not know."""

    async def groups() -> list[dict[str, object]]:
        return [{"name": b"other", "lag": 3}, {"name": b"trainer"} | told]

    monkeypatch.setattr(store, "_groups", groups)
    assert await store.lag() == (told.get("lag") or 0)


async def test_the_trainer_goes_on_after_the_store_was_wiped(
    store: Store, valkey: EmbeddedStore
) -> None:
    await store.unread_from()
    redis = Redis.from_url(valkey.url)
    await redis.flushall()
    await redis.aclose()
    wait = interval(1.0, "Bash")
    await store.write(batch(1, {}, wait))
    assert await take(store) == []
    assert await take(store) == [wait]


async def test_old_intervals_are_purged(store: Store) -> None:
    await store.append_recorded([interval(1.0, "Bash") for _ in range(300)])
    last_s = (await store.last_position()).ms / 1_000
    await store.purge_intervals(last_s)
    assert len(await read_all(store)) == 300
    await store.purge_intervals(last_s + MAX_AGE_S + 60)
    assert len(await read_all(store)) < 200


async def test_one_has_the_lease_until_it_is_given_back_or_lapses(
    store: Store, valkey: EmbeddedStore
) -> None:
    other = Store(valkey.url)
    assert not await store.has_trainer()
    assert await store.acquire_lease()
    assert (await other.acquire_lease(), await other.renew_lease()) == (False, False)
    await other.release_lease()
    assert await store.renew_lease() and await store.has_trainer()
    await store.release_lease()
    assert await other.acquire_lease()
    assert not await store.renew_lease()
    await store.release_lease()
    assert await other.renew_lease()
    redis = Redis.from_url(valkey.url)
    assert 0 < await redis.pttl("{cachewise}:trainer:lease") <= 1_000 * module.LEASE_S
    await redis.aclose()
    await other.close()


async def test_what_the_trainer_tells_comes_back(store: Store) -> None:
    assert await store.status() is None
    status = TrainerStatus(trainings=3, lag=7, score=0.1)
    await store.write_status(status)
    assert await store.status() == status


async def test_parts_to_leave_out_are_kept_newest_first_and_bounded(store: Store) -> None:
    parts = [
        LeftOut(None if n % 2 else "ü", Position(n, 1), Position(n + 1, 0)) for n in range(150)
    ]
    await store.leave_out(parts)
    assert await store.left_out() == parts[::-1][:MAX_LEFT_OUT]


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


INFO = ModelInfo("drift", 5.5, Position(3, 1), {Group("a", Wait.TOOL, "é"): START}, 0.25, None)


async def test_a_model_and_its_pointer_move_together_and_old_models_are_deleted(
    store: Store, valkey: EmbeddedStore
) -> None:
    assert await store.pointer() is None
    for number in range(MODELS_KEPT + 3):
        pointer = Pointer(f"v{number}", number + 1, Position(number, 0))
        assert await store.publish_model(pointer, b"blob %d" % number, INFO, number or None)
        assert await store.pointer() == pointer
    assert await store.load_model(pointer.version) == b"blob %d" % number
    assert await store.model_info(pointer.version) == INFO
    assert (await store.load_model("v0"), await store.model_info("v0")) == (b"", None)
    redis = Redis.from_url(valkey.url)
    blobs = await redis.keys("{cachewise}:model:*")
    await redis.aclose()
    assert len(blobs) == MODELS_KEPT


@pytest.mark.parametrize("after", [None, 0, 2])
async def test_a_model_that_does_not_follow_the_current_one_is_not_published(
    store: Store, after: int | None
) -> None:
    current = Pointer("new", 1)
    assert await store.publish_model(current, b"x", INFO, None)
    assert not await store.publish_model(Pointer("late", 2), b"y", INFO, after)
    assert (await store.pointer(), await store.versions()) == (current, ["new"])
    assert not await store.go_back(Pointer("new", 2), LeftOut(None, START, START), 5)
    assert await store.left_out() == []


async def test_of_models_published_at_the_same_time_one_is_the_current_one(store: Store) -> None:
    assert await store.publish_model(Pointer("v", 1), b"x", INFO, None)
    attempts = (store.publish_model(Pointer(f"v{n}", 2), b"x", INFO, 1) for n in range(12))
    assert sorted(await asyncio.gather(*attempts)) == [False] * 11 + [True]
    assert len(await store.versions()) == 2


async def test_foreign_records_are_skipped(store: Store, valkey: EmbeddedStore) -> None:
    redis = Redis.from_url(valkey.url)
    await redis.xadd("{cachewise}:intervals", {"other": "x"})
    await redis.xadd("{cachewise}:intervals", {"interval": '{"wait": "coffee"}'})
    await redis.hset("{cachewise}:sessions", "no json", "{}")
    await redis.zadd("{cachewise}:sessions:touched", {"no json": 1.0, '["a", "gone"]': 2.0})
    await redis.hset("{cachewise}:model", mapping={"version": "v", "generation": "x"})
    await redis.rpush("{cachewise}:left-out", "?", "[1, 2, 3]")
    await redis.hset("{cachewise}:trainer", mapping={"lag": "many"})
    await redis.hset("{cachewise}:model:v", mapping={"blob": "x", "info": "[]"})
    await redis.aclose()
    assert await read_all(store) == []
    taken = await store.take_intervals(is_again=False)
    assert (taken.intervals, await store.left_out()) == ([], [])
    assert await store.status() is None
    assert await store.model_info("v") is None
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
