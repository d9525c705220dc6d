"""Turns, requests and trace lines with sensible defaults, for the bench's tests."""

from __future__ import annotations

import json
from typing import Any

from cachewise_bench.agents import Request
from cachewise_bench.workload import Session, ToolCall, Turn


def turn(prompt_tokens: int, tools: int = 1, wait_s: float = 1.0) -> Turn:
    """A turn of 100 output tokens."""
    calls = tuple(ToolCall("Bash", json.dumps({"command": f"ls {i}"}), i) for i in range(tools))
    return Turn(prompt_tokens, 100, calls, wait_s)


def session(name: str, *prompts: int) -> Session:
    """A session with these prompt sizes."""
    return Session(name, tuple(turn(prompt) for prompt in prompts))


def request(session: str = "s", turn: int = 0, **fields: Any) -> Request:
    """A request that took 2 s, 1,000 prompt tokens and 50 output tokens."""
    defaults = {
        "started_s": 3.0 * turn,
        "latency_s": 2.0,
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "output_tokens": 50,
        "tool_calls": 1,
    }
    return Request(session=session, turn=turn, **(defaults | fields))


def trace_line(**fields: Any) -> str:
    """A line of the normalised format."""
    call = {"name": "Bash", "args": {"command": "git status"}, "dur": 0.5}
    defaults = {
        "session": "abc",
        "turn": 0,
        "prompt_tokens": 1000,
        "output_tokens": 100,
        "tools": [call],
        "next": "tool",
        "reuse_s": 0.7,
    }
    return json.dumps(defaults | fields)


def claude_line(kind: str, second: float, session: str = "abc", **fields: Any) -> dict[str, Any]:
    """A line of a Claude Code log, so many seconds into a minute."""
    return {
        "type": kind,
        "sessionId": session,
        "isSidechain": False,
        "timestamp": f"2026-01-01T00:00:{second:06.3f}Z",
        **fields,
    }


def claude_message(message_id: str, *content: dict[str, Any], prompt: int = 500) -> dict[str, Any]:
    """An assistant message that is complete."""
    return {
        "id": message_id,
        "model": "claude",
        "stop_reason": "tool_use",
        "content": list(content),
        "usage": {"input_tokens": 10, "cache_read_input_tokens": prompt - 10, "output_tokens": 80},
    }
