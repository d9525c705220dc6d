"""The tool calls and the outcome of one response, read from its bytes as they pass.

A framing (framing.py) turns bytes into JSON texts, a dialect reads them: OpenAI chat completions
(several choices, parallel and interleaved calls, arguments in pieces) and Anthropic messages.

Nothing here raises on bad data: what cannot be read is skipped, and `is_broken` says so. Memory is
bounded: one JSON text, MAX_CALLS calls and MAX_RAW_CHARS of each one's arguments. Arguments leave
this file redacted and cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cachewise_proto.redaction import MAX_RAW_CHARS, redact

from cachewise_engine_hook.framing import EventStream, WholeBody

MAX_CALLS = 64
MAX_NAME_CHARS = 256


class Outcome(Enum):
    """Why a turn ended, as far as the response says; UNSPECIFIED if it could not be read."""

    UNSPECIFIED = "unspecified"
    TOOL = "tool"
    HUMAN = "human"
    LENGTH = "length"
    ABORTED = "aborted"


OUTCOME_OF_REASON = {
    "stop": Outcome.HUMAN,
    "end_turn": Outcome.HUMAN,
    "stop_sequence": Outcome.HUMAN,
    "length": Outcome.LENGTH,
    "max_tokens": Outcome.LENGTH,
    "tool_calls": Outcome.TOOL,
    "tool_use": Outcome.TOOL,
    "abort": Outcome.ABORTED,
    "error": Outcome.ABORTED,
}
"""By OpenAI's finish_reason and Anthropic's stop_reason."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: JSON text, redacted and cut (so perhaps no valid JSON any more)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a response said: its calls in the order in which they began, and why it ended."""

    tool_calls: tuple[ToolCall, ...]
    outcome: Outcome


class Dialect(Protocol):
    """Reads the JSON values of one response and notes the calls in them."""

    def __init__(self, notes: Notes) -> None: ...

    def read_body(self, body: Mapping[str, object]) -> None:
        """A whole response."""

    def read_event(self, event: Mapping[str, object]) -> None:
        """One event of a stream."""


class ResponseParser:
    """One response: `feed` its bytes in order, then `end` it and take the `reading`."""

    def __init__(self, dialect: type[Dialect], *, is_stream: bool) -> None:
        self._notes = Notes()
        self._dialect = dialect(self._notes)
        self._framing = EventStream() if is_stream else WholeBody()
        self._read = self._dialect.read_event if is_stream else self._dialect.read_body
        self._is_malformed = False

    @property
    def is_complete(self) -> bool:
        """The stream has said that nothing follows (`[DONE]`, message_stop)."""
        return self._framing.is_ended or self._notes.is_ended

    @property
    def is_broken(self) -> bool:
        """Some part could not be read."""
        return self._is_malformed or self._framing.is_too_long

    def feed(self, data: bytes) -> None:
        for text in self._framing.feed(data):
            self._read_text(text)

    def end(self) -> None:
        """No more bytes follow."""
        for text in self._framing.end():
            self._read_text(text)

    def reading(self, *, is_cut: bool) -> Reading:
        """is_cut: the response did not reach its end. Counts unless it had said why it ended."""
        outcome = self._notes.outcome
        if is_cut and outcome is Outcome.UNSPECIFIED or outcome is Outcome.ABORTED:
            return Reading((), Outcome.ABORTED)
        calls = self._notes.tool_calls()
        return Reading(calls, Outcome.TOOL if calls else outcome)

    def _read_text(self, text: bytes) -> None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self._read(value)
        else:
            self._is_malformed = True


class OpenAIChat:
    """`/v1/chat/completions`: tool_calls in choices[].message, or in pieces in choices[].delta."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def read_body(self, body: Mapping[str, object]) -> None:
        for choice in _objects(body.get("choices")):
            message = _object(choice.get("message"))
            for position, call in enumerate(_objects(message.get("tool_calls"))):
                self._read_call(_place(choice.get("index"), position), call)
            self._notes.reason(choice.get("finish_reason"))

    def read_event(self, event: Mapping[str, object]) -> None:
        if event.get("error"):
            self._notes.reason("error")
        for choice in _objects(event.get("choices")):
            for call in _objects(_object(choice.get("delta")).get("tool_calls")):
                self._read_call(_place(choice.get("index"), call.get("index")), call)
            self._notes.reason(choice.get("finish_reason"))

    def _read_call(self, place: Place, call: Mapping[str, object]) -> None:
        function = _object(call.get("function"))
        self._notes.call(place, _text(call.get("id")), _text(function.get("name")))
        self._notes.arguments(place, _text(function.get("arguments")))


class AnthropicMessages:
    """`/v1/messages`: tool_use blocks, whole or as a start and input_json_delta pieces."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def read_body(self, body: Mapping[str, object]) -> None:
        for position, block in enumerate(_objects(body.get("content"))):
            self._read_block(_place(0, position), block)
        self._notes.reason(body.get("stop_reason"))

    def read_event(self, event: Mapping[str, object]) -> None:
        place, delta = _place(0, event.get("index")), _object(event.get("delta"))
        match event.get("type"):
            case "content_block_start":
                self._read_block(place, _object(event.get("content_block")))
            case "content_block_delta":
                self._notes.arguments(place, _text(delta.get("partial_json")))
            case "message_delta":
                self._notes.reason(delta.get("stop_reason"))
            case "message_stop":
                self._notes.is_ended = True
            case "error":
                self._notes.reason("error")

    def _read_block(self, place: Place, block: Mapping[str, object]) -> None:
        if block.get("type") == "tool_use":
            self._notes.call(place, _text(block.get("id")), _text(block.get("name")))
            # In a stream the start has an empty input, and the pieces follow.
            if value := block.get("input"):
                self._notes.arguments(place, json.dumps(value, ensure_ascii=False))


Place = tuple[int, int]
"""Where a call stands in the response: its choice, and its index within that."""


@dataclass(slots=True)
class _OpenCall:
    id: str
    name: str
    arguments: str = ""


class Notes:
    """What a dialect has found so far in one response."""

    def __init__(self) -> None:
        self.is_ended = False
        self.outcome = Outcome.UNSPECIFIED
        self._calls: list[_OpenCall] = []
        self._at: dict[Place, _OpenCall] = {}

    def call(self, place: Place, call_id: str, name: str) -> None:
        """A call begins at the place, or goes on there.

        Some servers send several whole calls with one index: another id and a name is another.
        """
        known = self._at.get(place)
        if known and not (name and call_id and known.id and call_id != known.id):
            known.id, known.name = known.id or call_id, known.name or name
        elif len(self._calls) < MAX_CALLS:
            self._at[place] = opened = _OpenCall(call_id, name)
            self._calls.append(opened)

    def arguments(self, place: Place, piece: str) -> None:
        if call := self._at.get(place):
            call.arguments += piece[: MAX_RAW_CHARS - len(call.arguments)]

    def reason(self, reason: object) -> None:
        """Why the response ended, None for not yet. The first counts, but tool calls before all."""
        outcome = OUTCOME_OF_REASON.get(_text(reason), Outcome.UNSPECIFIED)
        if self.outcome is Outcome.UNSPECIFIED or outcome is Outcome.TOOL:
            self.outcome = outcome

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                _whole_characters(call.id)[:MAX_NAME_CHARS],
                _whole_characters(call.name)[:MAX_NAME_CHARS],
                redact(_whole_characters(call.arguments)),
            )
            for call in self._calls
            if call.name
        )


def _place(choice: object, index: object) -> Place:
    return choice if isinstance(choice, int) else 0, index if isinstance(index, int) else 0


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole_characters(text: str) -> str:
    """Joins surrogate pairs that came as two escapes in two pieces, replaces lone halves."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
