"""Who is told what."""

import asyncio

import pytest
from cachewise_predictor import watchers as module
from cachewise_predictor.errors import TooManySessions
from cachewise_predictor.events import SessionKey
from cachewise_predictor.watchers import Watchers

A, B = SessionKey("acme", "a"), SessionKey("acme", "b")


async def test_only_replicas_that_announced_a_session_hear_of_it() -> None:
    watchers = Watchers()
    first, second = watchers.add(), watchers.add()
    watchers.announce(first, [A])
    watchers.announce(second, [A, B])
    watchers.tell(A)
    watchers.tell(B)
    assert await first.take(10) == [(A, False)]
    assert await second.take(10) == [(A, False), (B, False)]
    watchers.withdraw(second, [A])
    watchers.tell(A)
    watchers.tell(B)
    assert await second.take(10) == [(B, False)]


async def test_a_slow_replica_costs_one_entry_per_session_and_learns_of_the_end() -> None:
    watchers = Watchers()
    watcher = watchers.add()
    watchers.announce(watcher, [A])
    for _ in range(1_000):
        watchers.tell(A)
    watchers.tell(A, has_ended=True)
    watchers.tell(A)
    assert await watcher.take(10) == [(A, True)]


async def test_a_closed_watcher_gives_what_it_has_and_then_nothing() -> None:
    watchers = Watchers()
    watcher = watchers.add()
    watchers.announce(watcher, [A])
    waiting = asyncio.create_task(watcher.take(10))
    await asyncio.sleep(0)
    watchers.close()
    assert await waiting == []
    assert await watchers.add().take(10) == [], "streams that come later end at once"


async def test_removing_a_replica_leaves_nothing_behind() -> None:
    watchers = Watchers()
    watcher = watchers.add()
    watchers.announce(watcher, [A, B])
    watchers.remove(watcher)
    assert (len(watchers), watchers._of_session) == (0, {})


async def test_a_replica_cannot_watch_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS_PER_REPLICA", 1)
    watchers = Watchers()
    with pytest.raises(TooManySessions):
        watchers.announce(watchers.add(), [A, B])
