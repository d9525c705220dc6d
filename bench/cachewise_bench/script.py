"""Turns sessions into the requests that are sent: fixed before the run, equal for every policy.

Each prompt is the conversation so far: the previous prompt, the answer that was forced, and a tool
result (or a person's next message) that fills it up to the traced size times the token scale. An
answer is a tool call that vLLM itself parses: the tool is named in tool_choice, and its strict
schema allows one text for each argument. The call keeps the beginning of the traced arguments, and
a description fills it up to the traced output size; a call has no fewer tokens than its syntax and
those arguments need, about 15 of the tiny model's. The last turn of a session, and those after
which a person came, answer in words. Sessions of one harness share its system prompt. A subagent
sends nothing: its parent waits for it as for any tool.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachewise_bench.tiny_model import WORDS
from cachewise_bench.workload import Session, ToolCall, Turn, WorkloadError

SLACK_TOKENS = 48
"""Output tokens allowed beyond those planned, in case the model spells an answer differently."""

MIN_WAIT_S = 0.05
"""However short its tool: an agent takes this long between an answer and its next request."""

MAX_ARGUMENT_CHARS = 48
MIN_FILLER_WORDS = 3

Message = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One request of a session."""

    messages: tuple[Message, ...]
    constraints: dict[str, Any]
    """The part of the body that forces the answer."""
    prompt_tokens: int
    max_tokens: int
    calls_tool: bool
    wait_s: float
    """Scaled time from the answer to the next request."""


@dataclass(frozen=True)
class Script:
    """A session, ready to be sent."""

    session: str
    steps: tuple[Step, ...]

    @property
    def most_context_tokens(self) -> int:
        """The most tokens that the session's KV cache holds."""
        return max(step.prompt_tokens + step.max_tokens for step in self.steps)


@dataclass(frozen=True)
class Scales:
    """How traced sizes and waits become those of the run."""

    tokens: float
    time: float
    max_wait_s: float


class Tokenizer:
    """Counts tokens as the server will: with the model's own tokenizer and chat template."""

    def __init__(self, model: Path) -> None:
        if not (model / "config.json").exists():
            raise WorkloadError(f"{model}: no model here (a folder with config.json is expected)")
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that asks for the answer to messages."""
        templated = [_with_parsed_arguments(message) for message in messages]
        text = self._tokenizer.apply_chat_template(
            templated, tokenize=False, add_generation_prompt=True
        )
        return len(self._tokenizer.encode(text, add_special_tokens=False))


def write_scripts(
    sessions: Sequence[Session], tokenizer: Tokenizer, scales: Scales, seed: int
) -> list[Script]:
    """The requests of all sessions; the same for the same arguments."""
    return [
        _write_script(
            session,
            {"role": "system", "content": _system_prompt(session, scales, seed)},
            tokenizer,
            scales,
            random.Random(f"{seed}/{session.name}"),
        )
        for session in sessions
    ]


def _system_prompt(session: Session, scales: Scales, seed: int) -> str:
    """The same for all sessions of a harness."""
    rng = random.Random(f"{seed}/{session.harness}")
    return _words(rng, round(session.system_tokens * scales.tokens))


def _write_script(
    session: Session, system: Message, tokenizer: Tokenizer, scales: Scales, rng: random.Random
) -> Script:
    messages = [system]
    opening: Message = {"role": "user", "content": ""}
    steps: list[Step] = []
    last = len(session.turns) - 1
    for i, turn in enumerate(session.turns):
        turn = replace(turn, tool_calls=() if i == last else turn.tool_calls)
        if turn.compacted:
            messages, opening = [system], {"role": "user", "content": ""}
        messages.append(opening)
        base = tokenizer.count(messages)
        filler = max(MIN_FILLER_WORDS, round(turn.prompt_tokens * scales.tokens) - base)
        messages[-1] = opening | {"content": _words(rng, filler)}
        answer, constraints = _answer(turn, f"call_{i}", round(turn.output_tokens * scales.tokens))
        answered = tokenizer.count([*messages, answer]) - base - filler
        steps.append(
            Step(
                messages=tuple(messages),
                constraints=constraints,
                prompt_tokens=base + filler,
                max_tokens=answered + SLACK_TOKENS,
                calls_tool=bool(turn.tool_calls),
                wait_s=max(MIN_WAIT_S, min(scales.max_wait_s, turn.wait_s * scales.time)),
            )
        )
        messages.append(answer)
        opening = {"role": "user", "content": ""}
        if turn.tool_calls:
            opening = {"role": "tool", "tool_call_id": f"call_{i}", "content": ""}
    return Script(session.name, tuple(steps))


def _answer(turn: Turn, call_id: str, tokens: int) -> tuple[Message, dict[str, Any]]:
    """The answer of about so many tokens, as a message, and what forces the model to give it."""
    rng = random.Random(f"{call_id}/{tokens}")
    if not turn.tool_calls:
        text = "Done." + _words(rng, max(MIN_FILLER_WORDS, tokens - 3))
        return {"role": "assistant", "content": text}, {"structured_outputs": {"choice": [text]}}
    call = max(turn.tool_calls, key=lambda c: c.duration_s)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "tool"
    arguments = dict([_main_argument(call)])
    used = 10 + len(next(iter(arguments.values()))) // 2
    if tokens - used >= MIN_FILLER_WORDS:
        arguments["description"] = _words(rng, tokens - used).strip()
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    return message, _forced_call(name, arguments)


def _forced_call(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    """The part of a request that leaves the model nothing but this call."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "enum": [text]} for key, text in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "strict": True, "parameters": parameters},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }


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


def _words(rng: random.Random, count: int) -> str:
    """count words, each with a blank before it: count tokens of the tiny model."""
    return "".join(f" {word}" for word in rng.choices(WORDS, k=count))


def _with_parsed_arguments(message: Message) -> Message:
    """The message as vLLM hands it to the chat template: arguments as an object, not as text."""
    if "tool_calls" not in message:
        return message
    calls = [
        call
        | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}
