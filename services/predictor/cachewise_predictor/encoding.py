"""The records of the store as JSON, and back; what cannot be read comes back as None."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .events import Interval, OpenInterval, Position, SessionKey, ToolCall, Wait
from .evidence import PastWait, Recent
from .model import Group
from .published import ModelInfo, Pointer
from .sessions import SessionState
from .training import TrainerStatus
from .window import LeftOut, StoredInterval

_to_json = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def dump_state(state: SessionState) -> str:
    opened = state.open
    return _to_json(
        {
            "touched_at": state.touched_at,
            "open": opened and [opened.turn, opened.opened_at, opened.wait.value, opened.calls],
            "seen": state.seen,
            "unmatched_start": state.unmatched_start,
            "ended_at": state.ended_at,
            "recent": state.recent,
        }
    )


def load_session(member: bytes, value: bytes | None) -> tuple[SessionKey, SessionState] | None:
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


def dump_interval(interval: Interval, is_live: bool) -> str:
    return _to_json(
        {
            "tenant": interval.key.tenant,
            "session": interval.key.session,
            "turn": interval.turn,
            "wait": interval.wait.value,
            "calls": interval.calls,
            "seconds": interval.seconds,
            "is_finished": interval.is_finished,
            "is_live": is_live,
        }
    )


def load_interval(position: bytes, fields: Mapping[bytes, bytes]) -> StoredInterval | None:
    try:
        record = json.loads(fields[b"interval"])
        interval = Interval(
            key=SessionKey(record["tenant"], record["session"]),
            turn=record["turn"],
            wait=Wait(record["wait"]),
            calls=_load_calls(record["calls"]),
            seconds=float(record["seconds"]),
            is_finished=bool(record["is_finished"]),
        )
        return StoredInterval(Position.parse(position.decode()), interval, record["is_live"])
    except (ValueError, TypeError, KeyError):
        return None


def load_pointer(values: Sequence[bytes | None]) -> Pointer | None:
    """values: in the order of Pointer's fields."""
    version, generation, position = values
    if version is None or generation is None or position is None:
        return None
    try:
        return Pointer(version.decode(), int(generation), Position.parse(position.decode()))
    except ValueError:
        return None


def dump_info(info: ModelInfo) -> str:
    changes = [
        [group.tenant, group.wait.value, group.kind, str(since)]
        for group, since in info.changes.items()
    ]
    record = {
        "reason": info.reason,
        "trained_at": info.trained_at,
        "position": str(info.position),
        "changes": changes,
        "score": info.score,
        "serving_score": info.serving_score,
    }
    return json.dumps(record)


def load_info(value: bytes | None) -> ModelInfo | None:
    try:
        record = json.loads(value or b"")
        return ModelInfo(
            reason=str(record["reason"]),
            trained_at=float(record["trained_at"]),
            position=Position.parse(record["position"]),
            changes={
                Group(tenant, Wait(wait), kind): Position.parse(since)
                for tenant, wait, kind, since in record["changes"]
            },
            score=record["score"],
            serving_score=record["serving_score"],
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def dump_left_out(part: LeftOut) -> str:
    return json.dumps([part.tenant, str(part.after), str(part.to)])


def load_left_out(value: bytes) -> LeftOut | None:
    try:
        tenant, after, to = json.loads(value)
        return LeftOut(tenant, Position.parse(after), Position.parse(to))
    except (ValueError, TypeError, AttributeError):
        return None


def load_status(values: Mapping[str, bytes | None]) -> TrainerStatus | None:
    """values: by field."""
    defaults = TrainerStatus()
    try:
        numbers = {
            name: type(getattr(defaults, name))(value.decode())
            for name, value in values.items()
            if value is not None
        }
    except ValueError:
        return None
    return TrainerStatus(**numbers) if numbers else None
