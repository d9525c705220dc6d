"""Everything that the predictor keeps in Redis: every key, its type, bound and life, and every
command. docs/redis.md says who writes and who reads them.

    key                            type    bound                 life
    {cachewise}:sessions           hash    MAX_STORED_SESSIONS   2 * TTL_S after the last write
    {cachewise}:sessions:touched   zset    the same members      the same
    {cachewise}:intervals          stream  about MAX_INTERVALS   each MAX_AGE_S
    {cachewise}:writer:<id>        string  one per predictor     1 hour after its last write
    {cachewise}:model              hash    Pointer's fields
    {cachewise}:models             list    MODELS_KEPT           versions, newest first
    {cachewise}:model:<version>    hash    blob, info            to the fall from the list
    {cachewise}:left-out           list    MAX_LEFT_OUT
    {cachewise}:trainer            hash    TrainerStatus' fields 1 day after the last write
    {cachewise}:trainer:lease      string  a token               LEASE_S after the last renewal

The braces put all keys in one slot of a Redis cluster, so that they can change in one transaction.
The stream has one consumer group, which the trainer reads by. Sessions are keyed hashes already.
The arguments of tool calls are redacted by the engine; they are kept with the open interval and in
the stream, as long as those.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.lock import Lock
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import LockError, RedisError, ResponseError, WatchError

from . import encoding
from .errors import StoreError
from .events import START, Interval, Position, SessionKey
from .published import ModelInfo, Pointer
from .sessions import MAX_SESSIONS, TTL_S, SessionState
from .training import TrainerStatus
from .window import MAX_AGE_S, LeftOut, StoredInterval

MAX_STORED_SESSIONS = MAX_SESSIONS
MAX_INTERVALS = 100_000
MODELS_KEPT = 10
MAX_LEFT_OUT = 100
LEASE_S = 15.0

_SESSIONS = "{cachewise}:sessions"
_TOUCHED = "{cachewise}:sessions:touched"
_INTERVALS = "{cachewise}:intervals"
_WRITER = "{cachewise}:writer:"
_POINTER = "{cachewise}:model"
_MODELS = "{cachewise}:models"
_MODEL = "{cachewise}:model:"
_LEFT_OUT = "{cachewise}:left-out"
_STATUS = "{cachewise}:trainer"
_LEASE = "{cachewise}:trainer:lease"

_GROUP = _CONSUMER = "trainer"
"""One consumer for all trainers: the lease lets one read at a time, and what a killed one has not
acknowledged comes again.
"""

_APPEND = """
for number = 2, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'interval', ARGV[number])
end
"""
"""A stream's entries, of which XADD adds one: packing a command for each and reading its answer is
most of what a write costs the predictor.
"""

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


class Taken(NamedTuple):
    """What the trainer is to learn. ids: also those of entries that could not be read."""

    ids: list[bytes]
    intervals: list[StoredInterval]


Entry = tuple[bytes, Mapping[bytes, bytes]]


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
        self._lease = Lock(self._redis, _LEASE, timeout=LEASE_S, thread_local=False)

    async def ping(self) -> None:
        async with _store_errors():
            await self._run("PING")

    async def close(self) -> None:
        await self._redis.aclose()

    async def write(self, batch: Batch) -> None:
        """Writes all of a batch or nothing."""
        kept = {json.dumps(k): state for k, state in batch.sessions.items() if state is not None}
        gone = [json.dumps(k) for k, state in batch.sessions.items() if state is None]
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            if kept:
                states: dict[Any, Any] = {m: encoding.dump_state(s) for m, s in kept.items()}
                pipe.hset(_SESSIONS, mapping=states)
                pipe.zadd(_TOUCHED, {member: state.touched_at for member, state in kept.items()})
            if gone:
                pipe.hdel(_SESSIONS, *gone)
                pipe.zrem(_TOUCHED, *gone)
            _add_intervals(pipe, batch.intervals, is_live=True)
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
                loaded = map(encoding.load_session, chunk, values)
                found += [session for session in loaded if session is not None]
        return found

    async def append_recorded(self, intervals: Sequence[Interval]) -> None:
        """Adds intervals from trace files, without blocking others for long."""
        async with _store_errors():
            for start in range(0, len(intervals), _CHUNK):
                async with self._redis.pipeline(transaction=False) as pipe:
                    _add_intervals(pipe, intervals[start : start + _CHUNK], is_live=False)
                    await pipe.execute()

    async def purge_intervals(self, now: float) -> None:
        """Removes intervals that are too old to be learned from. now: seconds since the epoch."""
        oldest = f"{max(int((now - MAX_AGE_S) * 1_000), 0)}-0"
        async with _store_errors():
            await self._run("XTRIM", _INTERVALS, "MINID", "~", oldest)

    async def newest_intervals(self, before: Position, most: int) -> list[StoredInterval]:
        """The last ones before a position, oldest first; entries of others are skipped."""
        found: list[StoredInterval] = []
        while len(found) < most:
            async with _store_errors():
                entries = await self._run(
                    "XREVRANGE", _INTERVALS, f"({before}", "-", "COUNT", _CHUNK
                )
            if not entries:
                break
            before = Position.parse(entries[-1][0].decode())
            found += _load_intervals(entries)
        return found[:most][::-1]

    async def last_position(self) -> Position:
        """The position of the newest interval."""
        async with _store_errors():
            newest = await self._run("XREVRANGE", _INTERVALS, "+", "-", "COUNT", 1)
        return Position.parse(newest[0][0].decode()) if newest else START

    async def unread_from(self) -> Position:
        """The first position that the trainer's group has not finished with."""
        async with _store_errors():
            await self._make_group()
            pending = await self._run("XPENDING", _INTERVALS, _GROUP)
            if pending["pending"]:
                return Position.parse(pending["min"].decode())
            (group,) = [g for g in await self._groups() if g["name"] == _GROUP.encode()]
        ms, number = Position.parse(group["last-delivered-id"].decode())
        return Position(ms, number + 1)

    async def take_intervals(self, is_again: bool) -> Taken:
        """The next intervals for the trainer, up to 1,000.

        is_again: those that were taken before and not acknowledged.
        """
        async with _store_errors():
            read = ("XREADGROUP", "GROUP", _GROUP, _CONSUMER, "COUNT", _CHUNK, "STREAMS")
            try:
                streams = await self._run(*read, _INTERVALS, str(START) if is_again else ">")
            except ResponseError:  # the store was wiped, and the group is gone
                await self._make_group()
                return Taken([], [])
        entries = _entries_of(streams)
        return Taken([entry_id for entry_id, _ in entries], _load_intervals(entries))

    async def acknowledge(self, taken: Taken) -> None:
        """They need not be taken again."""
        async with _store_errors():
            await self._run("XACK", _INTERVALS, _GROUP, *taken.ids)

    async def lag(self) -> int:
        """How many intervals the trainer has not read; 0 if the server does not say: before Redis
        7, or for now after entries were deleted.
        """
        async with _store_errors():
            lags = [g.get("lag") for g in await self._groups() if g["name"] == _GROUP.encode()]
        return int(lags[0] or 0) if lags else 0

    async def acquire_lease(self) -> bool:
        """Takes the trainer's lease for LEASE_S; False if another has it."""
        async with _store_errors():
            return bool(await self._lease.acquire(blocking=False))

    async def renew_lease(self) -> bool:
        """Keeps the lease for another LEASE_S; False if it has lapsed."""
        async with _store_errors():
            with suppress(LockError):
                return bool(await self._lease.reacquire())
        return False

    async def release_lease(self) -> None:
        """Lets another trainer take over at once, if this one has the lease."""
        async with _store_errors():
            with suppress(LockError):
                await self._lease.release()

    async def has_trainer(self) -> bool:
        """Whether some trainer has the lease."""
        async with _store_errors():
            return bool(await self._run("EXISTS", _LEASE))

    async def write_status(self, status: TrainerStatus) -> None:
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(_STATUS, mapping={k: str(v) for k, v in asdict(status).items()})
            pipe.expire(_STATUS, 86_400)
            await pipe.execute()

    async def status(self) -> TrainerStatus | None:
        """What the trainer told last; None if it has not."""
        names = [field.name for field in fields(TrainerStatus)]
        async with _store_errors():
            values = await self._run("HMGET", _STATUS, *names)
        return encoding.load_status(dict(zip(names, values, strict=True)))

    async def pointer(self) -> Pointer | None:
        """Which model is current; None if there is none."""
        async with _store_errors():
            return encoding.load_pointer(await self._run("HMGET", _POINTER, *Pointer._fields))

    async def versions(self) -> list[str]:
        """The stored models, newest first."""
        async with _store_errors():
            return [v.decode() for v in await self._run("LRANGE", _MODELS, 0, -1)]

    async def load_model(self, version: str) -> bytes:
        """The stored model; empty if it is gone."""
        async with _store_errors():
            return bytes(await self._run("HGET", _MODEL + version, "blob") or b"")

    async def model_info(self, version: str) -> ModelInfo | None:
        """How a stored model came to be."""
        async with _store_errors():
            return encoding.load_info(await self._run("HGET", _MODEL + version, "info"))

    async def publish_model(
        self, pointer: Pointer, blob: bytes, info: ModelInfo, after: int | None
    ) -> bool:
        """Stores a model and makes it the current one, in one transaction; drops the oldest.

        after: the generation that it follows, None if there is no model yet. False, and nothing
        happens, if that is not the current one: somebody else has published meanwhile.
        """

        def add(pipe: Pipeline, stored: list[str]) -> None:
            versions = [pointer.version, *(v for v in stored if v != pointer.version)]
            pipe.hset(
                _MODEL + pointer.version, mapping={"blob": blob, "info": encoding.dump_info(info)}
            )
            pipe.delete(_MODELS, *(_MODEL + v for v in versions[MODELS_KEPT:]))
            pipe.rpush(_MODELS, *versions[:MODELS_KEPT])

        return await self._move_pointer(pointer, after, add)

    async def go_back(self, pointer: Pointer, part: LeftOut, after: int) -> bool:
        """Makes a stored model the current one, and leaves a part of the stream out, likewise."""
        return await self._move_pointer(pointer, after, lambda pipe, _: _leave_out(pipe, [part]))

    async def leave_out(self, parts: Iterable[LeftOut]) -> None:
        """No model is to learn from these parts of the stream."""
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            _leave_out(pipe, parts)
            await pipe.execute()

    async def left_out(self) -> list[LeftOut]:
        async with _store_errors():
            values = await self._run("LRANGE", _LEFT_OUT, 0, -1)
        return [part for part in map(encoding.load_left_out, values) if part is not None]

    async def _move_pointer(
        self, pointer: Pointer, after: int | None, change: Callable[[Pipeline, list[str]], None]
    ) -> bool:
        async with _store_errors(), self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(_POINTER, _MODELS)
            current = await self.pointer()
            if (current and current.generation) != after:
                return False
            stored = await self.versions()
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hset(_POINTER, mapping={k: str(v) for k, v in pointer._asdict().items()})
            change(pipe, stored)
            with suppress(WatchError):
                await pipe.execute()
                return True
        return False

    async def _make_group(self) -> None:
        with suppress(ResponseError):  # it is there
            await self._run("XGROUP", "CREATE", _INTERVALS, _GROUP, str(START), "MKSTREAM")

    async def _groups(self) -> list[dict[str, Any]]:
        try:
            return list(await self._redis.xinfo_groups(_INTERVALS))
        except ResponseError:  # no stream yet
            return []

    async def _run(self, *command: Any) -> Any:
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def _store_errors() -> AsyncIterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(f"the store does not answer: {error}") from error


def _add_intervals(pipe: Pipeline, intervals: Sequence[Interval], is_live: bool) -> None:
    if intervals:
        records = [encoding.dump_interval(interval, is_live) for interval in intervals]
        pipe.eval(_APPEND, 1, _INTERVALS, MAX_INTERVALS, *records)


def _leave_out(pipe: Pipeline, parts: Iterable[LeftOut]) -> None:
    for part in parts:
        pipe.lpush(_LEFT_OUT, encoding.dump_left_out(part))
    pipe.ltrim(_LEFT_OUT, 0, MAX_LEFT_OUT - 1)


def _entries_of(streams: Any) -> list[Entry]:
    """Of the answer to XREADGROUP, about one stream: pairs, or a mapping with protocol 3."""
    if not streams:
        return []
    if isinstance(streams, Mapping):
        return list(next(iter(streams.values())))
    return list(streams[0][1])


def _load_intervals(entries: Iterable[Entry]) -> list[StoredInterval]:
    loaded = (encoding.load_interval(entry_id, fields or {}) for entry_id, fields in entries)
    return [stored for stored in loaded if stored is not None]
