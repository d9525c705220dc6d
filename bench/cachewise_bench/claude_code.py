"""Claude Code's logs (~/.claude/projects): one file per session, one line per content block of a
message.

The lines of one assistant message share its id and repeat its usage; together they are a turn. Its
prompt is what the usage counts as input, cached or not. The request went out when the user line
before it was written: a prompt, or the result of the last tool. A resumed session copies its
history into a new file, so each message id counts once. Lines of a subagent (isSidechain) belong
to a chain of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cachewise_bench.workload import CHARS_TO_TOKENS, Session, ToolCall, Turn


@dataclass
class _Message:
    """An assistant message while its lines are collected. Times are epoch seconds."""

    requested_at: float
    ended_at: float
    usage: Mapping[str, Any]
    is_complete: bool = False
    """The log kept the message's end, so its usage counts all of the output."""
    output_chars: int = 0
    tool_calls: list[ToolCall] = field(default_factory=list)


class LogReader:
    """Collects the lines of any number of log files, each file's in order, into sessions."""

    def __init__(self) -> None:
        self._chains: dict[str, dict[str, _Message]] = {}
        self._owner: dict[str, str] = {}
        self._last_user_at: dict[str, float] = {}
        self._roots: dict[str, str] = {}

    def add(self, file: str, line: dict[str, object]) -> None:
        """Takes one line; those of other types than user and assistant say nothing about turns.

        Raises ValueError for a line that should but cannot be used.
        """
        if line["type"] not in ("user", "assistant") or line.get("isMeta"):
            return
        chain = self._chain(file, line)
        at = _time(line)
        if line["type"] == "user":
            self._last_user_at[chain] = at
            return
        message = line.get("message")
        if not isinstance(message, Mapping) or not isinstance(message.get("id"), str):
            raise ValueError("an assistant line without a message id")
        if message.get("model") == "<synthetic>":  # Claude Code's own words, such as an error.
            return
        if self._owner.setdefault(message["id"], chain) == chain:
            self._add_block(chain, message, at)

    def sessions(self) -> list[Session]:
        """A session for each chain that has turns, in the order of their first lines."""
        return [
            Session(chain, _turns(list(messages.values())))
            for chain, messages in self._chains.items()
            if messages
        ]

    def _chain(self, file: str, line: Mapping[str, object]) -> str:
        """The session's id; a subagent's has its agent id, or that of its first line, appended."""
        session = str(line.get("sessionId") or file)
        if not line.get("isSidechain"):
            return session
        uuid, parent = str(line.get("uuid")), str(line.get("parentUuid"))
        self._roots[uuid] = self._roots.get(parent, uuid)
        return f"{session}/{line.get('agentId') or self._roots[uuid]}"

    def _add_block(self, chain: str, message: Mapping[str, Any], at: float) -> None:
        usage, content = message.get("usage"), message.get("content")
        if not isinstance(usage, Mapping) or not isinstance(content, list):
            raise ValueError("an assistant message without usage or content")
        _prompt_tokens(usage)
        messages = self._chains.setdefault(chain, {})
        known = messages.setdefault(
            message["id"], _Message(self._last_user_at.get(chain, at), at, usage)
        )
        known.ended_at, known.usage = at, usage
        known.is_complete |= message.get("stop_reason") is not None
        for block in content:
            if not isinstance(block, Mapping):
                continue
            text = block.get("text") or block.get("thinking") or ""
            if block.get("type") == "tool_use":
                text = json.dumps(block.get("input"), ensure_ascii=False)
                known.tool_calls.append(ToolCall(str(block.get("name")), text))
            known.output_chars += len(str(text))


def _turns(messages: list[_Message]) -> tuple[Turn, ...]:
    """Turns in order; each waits until the next one's request."""
    turns = []
    for message, after in zip(messages, [*messages[1:], None], strict=True):
        wait = after.requested_at - message.ended_at if after else 0.0
        output = message.usage.get("output_tokens") if message.is_complete else None
        if not isinstance(output, int):
            output = int(CHARS_TO_TOKENS * message.output_chars)
        turns.append(Turn.recorded(_prompt_tokens(message.usage), output, message.tool_calls, wait))
    return tuple(turns)


def _prompt_tokens(usage: Mapping[str, Any]) -> int:
    """All input tokens of a request, cached or not."""
    total = 0
    for key in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        value = usage.get(key) or 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"usage.{key} is not a count of tokens: {value!r}")
        total += value
    if not total:
        raise ValueError("usage counts no input tokens")
    return total


def _time(line: Mapping[str, object]) -> float:
    """The line's timestamp in epoch seconds."""
    try:
        at = datetime.fromisoformat(str(line["timestamp"])).timestamp()
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"timestamp {line.get('timestamp')!r} is not a time") from None
    return at if math.isfinite(at) else 0.0
