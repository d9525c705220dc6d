"""OpenCode's sessions as `opencode export` writes them: one JSON document per session.

An assistant message is a turn. Tools start while it is streamed, and `time.completed` is after the
last of them; so the response ends with its last text or reasoning, or the start of its last call.
A call's own times are the agent's: `measured`. Permission is asked within them, but only by a rule
"ask"; of the rules an export has those of the session, so elsewhere nobody is taken to be asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .chains import Chains
from .turns import Call, Skip, Turn, anonymous, as_text, count_of, project_name, seconds_of

_EDITS = frozenset(("edit", "write", "patch", "multiedit"))
_ASK_ALWAYS = frozenset(("question",))


class OpenCode:
    """Records: the document's `info`, and the elements of its `messages`."""

    def __init__(self) -> None:
        self._chains = Chains()
        self._ask: frozenset[str] = frozenset()
        self._parent = ""

    def start(self, file: Path) -> None:
        self._ask, self._parent = frozenset(), ""

    def _describe(self, session: Mapping[str, Any]) -> None:
        rules = session.get("permission")
        self._ask = frozenset(
            str(rule.get("permission"))
            for rule in (rules if isinstance(rules, list) else ())
            if isinstance(rule, Mapping) and rule.get("action") == "ask"
        )
        parent = session.get("parentID")
        self._parent = anonymous(parent) if isinstance(parent, str) else ""

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        info, parts = record["info"], record.get("parts")
        if "parts" not in record:
            self._describe(info)
            return
        if info["role"] != "assistant":
            raise Skip("messages of users")
        if not isinstance(parts, list):
            raise ValueError("parts is not a list")
        session = anonymous(str(info["sessionID"]))
        requested_at = _seconds(info["time"], "created")
        tokens = info["tokens"]
        cache = tokens.get("cache") or {}
        cached = count_of(cache.get("read"), "tokens.cache.read")
        prompt = count_of(tokens.get("input"), "tokens.input") + cached
        prompt += count_of(cache.get("write"), "tokens.cache.write")
        if not prompt:
            yield from self._chains.close(session, requested_at)
            raise Skip("messages without a response")
        turn = Turn(session, requested_at, requested_at, "opencode")
        turn.prompt_tokens, turn.cached_tokens = prompt, cached
        turn.output_tokens = count_of(tokens.get("output"), "tokens.output")
        turn.output_tokens += count_of(tokens.get("reasoning"), "tokens.reasoning")
        turn.model, turn.parent = str(info.get("modelID") or ""), self._parent
        path = info.get("path")
        turn.project = project_name(path.get("cwd") if isinstance(path, Mapping) else None)
        for part in parts:
            self._add_part(turn, part)
        yield from self._chains.begin(turn)

    def finish(self) -> Iterator[Turn]:
        yield from self._chains.finish()

    def _add_part(self, turn: Turn, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind == "tool":
            self._add_call(turn, part)
        elif kind in ("text", "reasoning"):
            turn.output_chars += len(str(part.get("text") or ""))
            times = part.get("time")
            if isinstance(times, Mapping) and times.get("end") is not None:
                turn.ended_at = max(turn.ended_at, _seconds(times, "end"))

    def _add_call(self, turn: Turn, part: Mapping[str, Any]) -> None:
        state = part["state"]
        times = state.get("time") or {}
        started_at = turn.ended_at if times.get("start") is None else _seconds(times, "start")
        call = Call(str(part["tool"]), as_text(state.get("input")), started_at)
        if times.get("end") is not None:
            call.ended_at = _seconds(times, "end")
            call.seconds = max(call.ended_at - started_at, 0.0)
            call.quality = self._quality(call.name, str(state.get("error") or ""))
        call.result_chars = len(str(state.get("output") or ""))
        turn.output_chars += len(call.arguments)
        turn.ended_at = max(turn.ended_at, started_at)
        turn.calls.append(call)

    def _quality(self, tool: str, error: str) -> str:
        if "rejected permission" in error:
            return "rejected"
        if tool in _ASK_ALWAYS:
            return "human"
        permission = "edit" if tool in _EDITS else tool
        return "stamps_may_prompt" if self._ask & {permission, "*"} else "measured"


def _seconds(times: Mapping[str, Any], key: str) -> float:
    return seconds_of(times[key], f"time.{key}") / 1_000
