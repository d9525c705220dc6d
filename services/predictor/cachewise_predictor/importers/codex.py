"""Codex' logs (~/.codex/sessions): one rollout file per session, one line per item.

The items of one response (reasoning, message, calls) are a turn; the outputs of its calls and a
token count end it, in either order. The request went out when the last input was written: a user's
message or an output. Token counts are cumulative; only a changed one belongs to a new response.

A call's own time is in its output ("Wall time: 0.4 seconds"). Calls of a command return at their
`yield_time_ms`, and are polled by `write_stdin`: each is a call of its own. A person may be asked
unless the approval policy is `never`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .chains import Bounded, Chains
from .turns import Call, Skip, Turn, anonymous, as_text, count_of, iso_time, judge, project_name

_CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
_APPROVALS = frozenset(("exec_approval_request", "apply_patch_approval_request"))
_ASK_ALWAYS = frozenset(("request_user_input",))
_WALL_TIME = re.compile(r"Wall time:? (\d{1,9}(?:\.\d{1,9})?) seconds")
_DURATION = re.compile(r'"(?:duration_seconds|wall_time_seconds)":\s?(\d{1,9}(?:\.\d{1,12})?)')
_HEAD_CHARS = 2_000
_MOST_OPEN = 10_000


class Codex:
    def __init__(self) -> None:
        self._chains = Chains()
        self.start(Path())

    def start(self, file: Path) -> None:
        self._session, self._has_meta = anonymous(str(file)), False
        self._project = self._parent = ""
        self._model = self._policy = ""
        self._last_input_at: float | None = None
        self._is_over = True
        """Whether the next item of a response begins a new turn."""
        self._counted = 0
        self._calls: Bounded[str, Call] = Bounded(_MOST_OPEN)
        self._asked: Bounded[str, None] = Bounded(_MOST_OPEN)

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        payload = record["payload"]
        if not isinstance(payload, Mapping):
            raise ValueError("payload is not an object")
        match record["type"]:
            case "session_meta":
                self._take_meta(payload)
            case "turn_context":
                self._model = str(payload.get("model") or "")
                self._policy = str(payload.get("approval_policy") or "")
            case "response_item":
                yield from self._take_item(payload, iso_time(record.get("timestamp")))
            case "event_msg":
                self._take_event(payload)
            case other:
                raise Skip(f"{str(other)[:40]} lines")

    def finish(self) -> Iterator[Turn]:
        yield from self._chains.finish()

    def _take_meta(self, payload: Mapping[str, Any]) -> None:
        """The first one is the file's; a fork copies its ancestors' after it."""
        if not self._has_meta:
            self._has_meta = True
            self._session = anonymous(str(payload["id"]))
            self._project = project_name(payload.get("cwd"))
            self._parent = _parent(payload.get("source"))

    def _take_item(self, payload: Mapping[str, Any], at: float) -> Iterator[Turn]:
        kind = payload.get("type")
        if kind in _OUTPUTS:
            self._take_output(payload, at)
        elif kind == "message" and payload.get("role") != "assistant":
            self._last_input_at, self._is_over = at, True
        elif kind in _CALLS or kind in ("message", "reasoning"):
            turn = self._chains.open_turn(self._session)
            if turn is None or self._is_over:
                turn = self._new_turn(at)
                yield from self._chains.begin(turn)
            self._add_item(turn, payload, at)
        else:
            raise Skip(f"{str(kind)[:40]} items")

    def _new_turn(self, at: float) -> Turn:
        requested_at = at if self._last_input_at is None else self._last_input_at
        turn = Turn(self._session, requested_at, at, "codex-cli")
        turn.model, turn.permission = self._model, self._policy
        turn.project, turn.parent = self._project, self._parent
        self._is_over = False
        return turn

    def _add_item(self, turn: Turn, payload: Mapping[str, Any], at: float) -> None:
        turn.ended_at = at
        if payload.get("type") not in _CALLS:
            content = payload.get("content")
            texts = content if isinstance(content, list) else []
            turn.output_chars += sum(len(str(t.get("text") or "")) for t in texts if t)
            return
        arguments = payload.get("arguments") or payload.get("input") or payload.get("action") or ""
        call = Call(str(payload.get("name") or "local_shell"), as_text(arguments), at)
        turn.output_chars += len(call.arguments)
        turn.calls.append(call)
        self._calls[str(payload.get("call_id"))] = call

    def _take_output(self, payload: Mapping[str, Any], at: float) -> None:
        self._last_input_at, self._is_over = at, True
        identity = str(payload.get("call_id"))
        call = self._calls.pop(identity, None)
        turn = self._chains.open_turn(self._session)
        if call is None or turn is None:
            return
        text = as_text(payload.get("output"))
        call.result_chars = len(text)
        ends = [c.ended_at for c in turn.calls if c.ended_at is not None]
        since = max([call.started_at, *ends])
        judge(call, at, since, _measured_s(text), may_ask=self._policy != "never")
        if call.name in _ASK_ALWAYS or identity in self._asked:
            call.quality = "human"
        if "rejected by user" in text[:_HEAD_CHARS]:
            call.quality = "rejected"

    def _take_event(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        if kind in _APPROVALS:
            self._asked[str(payload.get("call_id"))] = None
        elif kind == "token_count":
            self._take_count(payload.get("info"))
        else:
            raise Skip(f"{str(kind)[:40]} events")

    def _take_count(self, info: object) -> None:
        turn = self._chains.open_turn(self._session)
        if not isinstance(info, Mapping) or turn is None:
            raise Skip("token counts without a response")
        total = count_of(info["total_token_usage"].get("total_tokens"), "total_tokens")
        if total == self._counted:
            raise Skip("repeated token counts")
        self._counted, last = total, info["last_token_usage"]
        turn.prompt_tokens = count_of(last.get("input_tokens"), "input_tokens")
        turn.cached_tokens = count_of(last.get("cached_input_tokens"), "cached_input_tokens")
        turn.output_tokens = count_of(last.get("output_tokens"), "output_tokens")
        self._is_over = True


def _parent(source: object) -> str:
    """The session that spawned this one, anonymous."""
    found = re.search(r'"parent_thread_id":\s*"([^"]{1,100})"', json.dumps(source))
    return anonymous(found[1]) if found else ""


def _measured_s(output: str) -> float | None:
    head = output[:_HEAD_CHARS]
    found = _WALL_TIME.search(head) or _DURATION.search(head.replace('\\"', '"'))
    return float(found[1]) if found else None
