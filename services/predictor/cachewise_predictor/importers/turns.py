"""What readers of logs make: turns with their tool calls, and the trace line of a turn.

Times are epoch seconds. The line is the normalised format that `train` and the bench read: keys as
in Turn and Call below, arguments as redacted text. `dur_q` says what a call's times are worth:

    measured            timed by the agent
    stamps              from the times of the log's lines; nobody was asked for permission
    stamps_may_prompt   the same, but a person may have been asked, and the log does not tell
    human               a person was waited for: a question, or a permission prompt
    rejected            a person refused the call
    background          the call returned at once, and its work went on
    none                the log has no result

A turn's wait counts for training if all its calls are `measured` or `stamps`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from cachewise_proto.redaction import MAX_RAW_CHARS, redact

PROMPT_S = 1.5
"""A call that took so much longer than the agent measured, where a person may be asked, waited for
the person. Agents' own overhead in the public logs is below 0.6 s.
"""


@dataclass
class Call:
    """seconds: the best estimate of the tool's own time."""

    name: str
    arguments: str
    started_at: float
    ended_at: float | None = None
    seconds: float | None = None
    quality: str = "none"
    result_chars: int = 0


@dataclass
class Turn:
    """One LLM request and its response.

    output_tokens None: the log kept only the response's text, of output_chars characters. after:
    "tool", "human", or "end" if no request followed; reuse_s: response's end to the next request.
    """

    session: str
    requested_at: float
    ended_at: float
    agent: str
    number: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int | None = None
    output_chars: int = 0
    calls: list[Call] = field(default_factory=list)
    after: str = "end"
    reuse_s: float | None = None
    model: str = ""
    permission: str = ""
    project: str = ""
    parent: str = ""

    @property
    def is_trusted(self) -> bool:
        """Whether the wait after it is a tool's alone."""
        trusted = all(call.quality in ("measured", "stamps") for call in self.calls)
        return self.after == "tool" and trusted


class Skip(Exception):
    """A well-formed record that says nothing about turns; the message is the reason."""


class Reader(Protocol):
    """Reads one log format. Keeps no more of a file than its open turns."""

    def start(self, file: Path) -> None:
        """The next records are this file's."""

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        """The turns that are complete with this record.

        Raises Skip, or ValueError, TypeError, KeyError or AttributeError for a broken record.
        """

    def finish(self) -> Iterator[Turn]:
        """The turns that are open at the end of the file."""


def to_line(turn: Turn) -> str:
    """The turn as a line of a normalised trace, without its line break."""
    record: dict[str, object] = {
        "session": turn.session,
        "turn": turn.number,
        "t_request": turn.requested_at,
        "t_response_end": turn.ended_at,
        "prompt_tokens": turn.prompt_tokens,
        "cached_tokens": turn.cached_tokens,
        "output_tokens": turn.output_tokens,
        "output_chars": turn.output_chars,
        "tools": [_call_record(call) for call in turn.calls],
        "next": turn.after,
        "reuse_s": None if turn.reuse_s is None else round(turn.reuse_s, 3),
        "agent": turn.agent,
        "model": turn.model,
        "perm": turn.permission or None,
        "project": turn.project,
    }
    if turn.parent:
        record |= {"subagent": True, "parent": turn.parent}
    return json.dumps(record)


def _call_record(call: Call) -> dict[str, object]:
    return {
        "name": call.name,
        "args": redact(call.arguments[:MAX_RAW_CHARS]),
        "t_start": call.started_at,
        "t_end": call.ended_at,
        "dur": None if call.seconds is None else round(call.seconds, 3),
        "dur_q": call.quality,
        "out_chars": call.result_chars,
    }


def anonymous(name: str) -> str:
    """Stands for a session's name."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def project_name(folder: object) -> str:
    """A folder's own name with a hash of where it is: tells projects apart, not where they are."""
    text = folder if isinstance(folder, str) else ""
    own = text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return f"{own[:60]}-{anonymous(text)[:4]}" if own else ""


def as_text(value: object) -> str:
    """Arguments as JSON text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def iso_time(text: object) -> float:
    """Epoch seconds of an ISO 8601 time."""
    try:
        at = datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        at = math.nan
    if not math.isfinite(at):
        raise ValueError(f"timestamp {str(text)[:40]!r} is not a time")
    return at


def count_of(value: object, name: str) -> int:
    """A count of tokens; None is 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**12:
        raise ValueError(f"{name} is not a count: {str(value)[:40]}")
    return value


def seconds_of(value: object, name: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number: {str(value)[:40]}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is not finite")
    return number


def judge(call: Call, at: float, since: float, measured_s: float | None, may_ask: bool) -> None:
    """Ends a call at the time of its result, and says what its times are worth.

    since: when it could begin (calls may wait for one another); may_ask: whether a person may have
    been asked for permission.
    """
    call.ended_at = at
    waited_s = max(at - since, 0.0)
    call.seconds = waited_s if measured_s is None else measured_s
    if measured_s is None:
        call.quality = "stamps_may_prompt" if may_ask else "stamps"
    else:
        asked = may_ask and waited_s - measured_s > PROMPT_S
        call.quality = "human" if asked else "measured"
