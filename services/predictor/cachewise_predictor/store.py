"""Everything that the predictor keeps in Redis: every key, its type, bound and life, and every
command.

    key                            type    bound                 life
    {cachewise}:sessions           hash    MAX_STORED_SESSIONS   2 * TTL_S after the last write
    {cachewise}:sessions:touched   zset    the same members      the same
    {cachewise}:intervals          stream  about MAX_INTERVALS
    {cachewise}:writer:<id>        string  one per predictor     1 hour after its last write
    {cachewise}:model              hash    Pointer's fields
    {cachewise}:models             list    MODELS_KEPT           versions, newest first
    {cachewise}:model:<version>    string  the listed versions   to the fall from the list

The braces put all keys in one slot of a Redis cluster, so that they can change in one transaction.
Sessions are keyed hashes already. The arguments of tool calls are redacted by the engine; they are
kept with the open interval and in the stream, as long as those.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError

from .errors import StoreError
from .events import Interval, OpenInterval, SessionKey, ToolCall, Wait
from .evidence import PastWait, Recent
from .sessions import MAX_SESSIONS, TTL_S, SessionState

MAX_STORED_SESSIONS = MAX_SESSIONS
MAX_INTERVALS = 100_000
MODELS_KEPT = 5
START = "0-0"
"""The position before the first interval of the stream."""

_SESSIONS = "{cachewise}:sessions"
_TOUCHED = "{cachewise}:sessions:touched"
_INTERVALS = "{cachewise}:intervals"
_WRITER = "{cachewise}:writer:"
_POINTER = "{cachewise}:model"
_MODELS = "{cachewise}:models"
_MODEL = "{cachewise}:model:"

_TIMEOUT_S = 2.0
_CHUNK = 1_000


@dataclass(frozen=True)
class Batch:
    """Changes that belong together.

    number: counts the writer's batches, so that none is written twice.
    """

    writer: str
    number: int
    sessions: Mapping[SessionKey, SessionState | None]
    intervals: Sequence[Interval]


class Pointer(NamedTuple):
    """The current model.

    generation: counts trainings; position: the last interval of the stream that is in it.
    """

    version: str
    generation: int
    position: str


class Store:
    """All methods raise StoreError when Redis does not answer, within a few seconds."""

    def __init__(self, url: str) -> None:
        """url: redis://, rediss:// or unix://. Nothing connects before the first command."""
        try:
            self._redis: Redis = Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise StoreError(f"--redis-url: {error}") from None

    async def ping(self) -> None:
        async with _store_errors():
            await self._run("PING")

    async def close(self) -> None:
        await self._redis.aclose()

    async def write(self, batch: Batch) -> None:
        """Writes all of a batch or nothing."""
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            for key, state in batch.sessions.items():
                member = json.dumps(key)
                if state is None:
                    pipe.hdel(_SESSIONS, member)
                    pipe.zrem(_TOUCHED, member)
                else:
                    pipe.hset(_SESSIONS, member, _dump_state(state))
                    pipe.zadd(_TOUCHED, {member: state.touched_at})
            for interval in batch.intervals:
                pipe.xadd(_INTERVALS, {"interval": _dump_interval(interval)}, maxlen=MAX_INTERVALS)
            pipe.expire(_SESSIONS, int(2 * TTL_S))
            pipe.expire(_TOUCHED, int(2 * TTL_S))
            pipe.set(_WRITER + batch.writer, batch.number, ex=3_600)
            await pipe.execute()

    async def last_written(self, writer: str) -> int:
        """The number of the writer's last batch, 0 if none: tells whether an unanswered write
        happened.
        """
        async with _store_errors():
            return int(await self._run("GET", _WRITER + writer) or 0)

    async def purge_sessions(self, now: float) -> None:
        """Removes sessions past their time, and the oldest over the bound; at most 1,000 a call."""
        async with _store_errors():
            excess = await self._run("ZCARD", _TOUCHED) - MAX_STORED_SESSIONS
            old = await self._run(
                "ZRANGE", _TOUCHED, "-inf", now - TTL_S, "BYSCORE", "LIMIT", 0, _CHUNK
            )
            if excess > 0:
                old += await self._run("ZRANGE", _TOUCHED, 0, min(excess, _CHUNK) - 1)
            if old:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.hdel(_SESSIONS, *old)
                    pipe.zrem(_TOUCHED, *old)
                    await pipe.execute()

    async def load_sessions(self) -> list[tuple[SessionKey, SessionState]]:
        """All sessions, the one idle longest first. Records that cannot be read are left out."""
        found: list[tuple[SessionKey, SessionState]] = []
        async with _store_errors():
            members = await self._run("ZRANGE", _TOUCHED, 0, -1)
            for start in range(0, len(members), _CHUNK):
                chunk = members[start : start + _CHUNK]
                values = await self._run("HMGET", _SESSIONS, *chunk)
                loaded = map(_load_session, chunk, values)
                found += [session for session in loaded if session is not None]
        return found

    async def read_intervals(self, position: str) -> tuple[str, list[Interval]]:
        """Up to 1,000 intervals after a position, and the position of the last; entries of others
        are skipped.
        """
        async with _store_errors():
            entries = await self._run("XRANGE", _INTERVALS, f"({position}", "+", "COUNT", _CHUNK)
        loaded = [_load_interval(fields) for _, fields in entries]
        if entries:
            position = entries[-1][0].decode()
        return position, [interval for interval in loaded if interval is not None]

    async def last_position(self) -> str:
        """The position of the newest interval."""
        async with _store_errors():
            newest = await self._run("XREVRANGE", _INTERVALS, "+", "-", "COUNT", 1)
        return str(newest[0][0].decode()) if newest else START

    async def pointer(self) -> Pointer | None:
        """Which model is current; None if there is none."""
        async with _store_errors():
            return _load_pointer(await self._run("HMGET", _POINTER, *Pointer._fields))

    async def versions(self) -> list[str]:
        """The stored models, newest first."""
        async with _store_errors():
            return [v.decode() for v in await self._run("LRANGE", _MODELS, 0, -1)]

    async def load_model(self, version: str) -> bytes:
        """The stored model; empty if it is gone."""
        async with _store_errors():
            return bytes(await self._run("GET", _MODEL + version) or b"")

    async def publish_model(self, pointer: Pointer, blob: bytes) -> bool:
        """Stores a model and makes it the current one, in one transaction; drops the oldest.

        False, and nothing happens, if the current one is of a later training or has more in it.
        """
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            while True:
                await pipe.watch(_POINTER, _MODELS)
                if _is_newer(await self.pointer(), pointer):
                    return False
                stored = await self.versions()
                versions = [pointer.version, *(v for v in stored if v != pointer.version)]
                pipe.multi()  # type: ignore[no-untyped-call]
                pipe.set(_MODEL + pointer.version, blob)
                pipe.hset(_POINTER, mapping={k: str(v) for k, v in pointer._asdict().items()})
                pipe.delete(_MODELS, *(_MODEL + v for v in versions[MODELS_KEPT:]))
                pipe.rpush(_MODELS, *versions[:MODELS_KEPT])
                with suppress(WatchError):  # another one was published meanwhile: look again
                    await pipe.execute()
                    return True

    async def _run(self, *command: Any) -> Any:
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def _store_errors() -> AsyncIterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(f"the store does not answer: {error}") from error


def _is_newer(current: Pointer | None, candidate: Pointer) -> bool:
    if current is None:
        return False
    return (current.generation, _order(current.position)) > (
        candidate.generation,
        _order(candidate.position),
    )


def _order(position: str) -> tuple[int, ...]:
    """Stream ids are two numbers: milliseconds and a count."""
    return tuple(map(int, position.split("-")))


def _load_pointer(values: list[bytes | None]) -> Pointer | None:
    version, generation, position = values
    if version is None or generation is None or position is None:
        return None
    try:
        _order(position.decode())
        return Pointer(version.decode(), int(generation), position.decode())
    except ValueError:
        return None


def _dump_state(state: SessionState) -> str:
    opened = state.open
    return json.dumps(
        {
            "touched_at": state.touched_at,
            "open": opened and [opened.turn, opened.opened_at, opened.wait.value, opened.calls],
            "seen": state.seen,
            "unmatched_start": state.unmatched_start,
            "ended_at": state.ended_at,
            "recent": state.recent,
        }
    )


def _load_session(member: bytes, value: bytes | None) -> tuple[SessionKey, SessionState] | None:
    try:
        tenant, session = json.loads(member)
        record = json.loads(value or b"")
        opened, start = record["open"], record["unmatched_start"]
        state = SessionState(
            touched_at=float(record["touched_at"]),
            open=opened
            and OpenInterval(opened[0], opened[1], Wait(opened[2]), _load_calls(opened[3])),
            seen=tuple(record["seen"]),
            unmatched_start=start and (start[0], start[1]),
            ended_at=record["ended_at"],
            recent=_load_recent(record.get("recent", [])),
        )
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return SessionKey(tenant, session), state


def _load_calls(pairs: list[list[str]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(str(name), str(arguments)) for name, arguments in pairs)


def _load_recent(waits: list[Any]) -> Recent:
    return tuple(PastWait((int(a), int(b), int(c)), float(s)) for (a, b, c), s in waits)


def _dump_interval(interval: Interval) -> str:
    return json.dumps(
        {
            "tenant": interval.key.tenant,
            "session": interval.key.session,
            "turn": interval.turn,
            "wait": interval.wait.value,
            "calls": interval.calls,
            "seconds": interval.seconds,
            "is_finished": interval.is_finished,
        }
    )


def _load_interval(fields: Mapping[bytes, bytes]) -> Interval | None:
    try:
        record = json.loads(fields[b"interval"])
        return Interval(
            key=SessionKey(record["tenant"], record["session"]),
            turn=record["turn"],
            wait=Wait(record["wait"]),
            calls=_load_calls(record["calls"]),
            seconds=float(record["seconds"]),
            is_finished=bool(record["is_finished"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
