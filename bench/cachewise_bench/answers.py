"""The answers that a session's turns must have, and what forces a model to give them.

An answer is a tool call or words. On a server of the bench's own the tool is named in tool_choice,
and its strict schema allows one text for each argument. On any other server a real model's chat
template writes the tools into the system prompt, so they must be the same in every request: there
the text of the whole answer is forced, as the template itself writes it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from cachewise_bench.tiny_model import WORDS
from cachewise_bench.workload import Session, ToolCall, Turn

MAX_ARGUMENT_CHARS = 48
MIN_FILLER_WORDS = 3

Message = dict[str, Any]


def words(rng: random.Random, count: int) -> str:
    """count words, each with a blank before it: count tokens of the tiny model."""
    return "".join(f" {word}" for word in rng.choices(WORDS, k=count))


def planned_answer(turn: Turn, call_id: str, tokens: int) -> tuple[Message, dict[str, Any]]:
    """The answer of about so many tokens, as a message, and what forces the model to give it."""
    rng = random.Random(f"{call_id}/{tokens}")
    if not turn.tool_calls:
        text = "Done." + words(rng, max(MIN_FILLER_WORDS, tokens - 3))
        return {"role": "assistant", "content": text}, {"structured_outputs": {"choice": [text]}}
    name, key, value = _tool_call(turn)
    arguments = {key: value}
    used = 10 + len(value) // 2
    if tokens - used >= MIN_FILLER_WORDS:
        arguments["description"] = words(rng, tokens - used).strip()
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    return message, _forced_call(name, arguments)


def _forced_call(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    """The part of a request that leaves the model nothing but this call."""
    tool = _tool(name, {key: {"type": "string", "enum": [text]} for key, text in arguments.items()})
    tool["function"] |= {"strict": True}
    tool["function"]["parameters"] |= {"required": list(arguments), "additionalProperties": False}
    return {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": name}}}


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _tool_call(turn: Turn) -> tuple[str, str, str]:
    """The turn's slowest call: the tool's name, and its main argument by name and text."""
    call = max(turn.tool_calls, key=lambda c: c.duration_s)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "tool"
    return name, *_main_argument(call)


def _main_argument(call: ToolCall) -> tuple[str, str]:
    """The call's first argument that is text, its beginning on one line of printable characters."""
    key, text = "command", call.arguments
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        texts = [(k, v) for k, v in arguments.items() if isinstance(v, str) and v.strip()]
        key, text = texts[0] if texts else (key, text)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = " ".join(text.split())[:MAX_ARGUMENT_CHARS].strip()
    return re.sub(r"\W", "_", key) or "command", text or "none"


def tools_of(sessions: Iterable[Session]) -> list[dict[str, Any]]:
    """All tools that the sessions call, as a request declares them."""
    keys: dict[str, set[str]] = {}
    for turn in (turn for session in sessions for turn in session.turns if turn.tool_calls):
        name, key, _ = _tool_call(turn)
        keys.setdefault(name, {"description"}).add(key)
    return [
        _tool(name, {key: {"type": "string"} for key in sorted(keys[name])})
        for name in sorted(keys)
    ]


def forced_text(text: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of a request that leaves the model nothing but this text."""
    declared = {"tools": tools, "tool_choice": "auto"} if tools else {}
    return declared | {"structured_outputs": {"choice": [text]}}
