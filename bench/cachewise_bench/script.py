"""Turns sessions into the requests that are sent: fixed before the run, equal for every policy.

Each prompt is the conversation so far: the previous prompt, the answer that was forced, and a tool
result (or a person's next message) that fills it up to the traced size times the token scale. How
answers are forced is told in answers.py: a call keeps the beginning of the traced arguments, and a
description fills it up to the traced output size; a call has no fewer tokens than its syntax and
those arguments need, about 15 of the tiny model's. The last turn of a session, and those after
which a person came, answer in words. Sessions of one harness share its system prompt. A subagent
sends nothing: its parent waits for it as for any tool.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachewise_bench.answers import MIN_FILLER_WORDS, Message, forced_text, planned_answer, words
from cachewise_bench.workload import Session, WorkloadError

SLACK_TOKENS = 48
"""Output tokens allowed beyond those planned, in case the model spells an answer differently."""

MIN_WAIT_S = 0.05
"""However short its tool: an agent takes this long between an answer and its next request."""


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

    def __init__(self, model: Path, tools: Sequence[dict[str, Any]] | None = None) -> None:
        """model: a folder with its tokenizer. tools: those that every request declares, where
        answers are forced by their text; None where each request has its own."""
        if not (model / "tokenizer_config.json").exists():
            raise WorkloadError(
                f"{model}: no model here (a folder with a tokenizer_config.json is expected)"
            )
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model)
        if self._tokenizer.chat_template is None:
            raise WorkloadError(f"{model}: its tokenizer has no chat template")
        self.tools = tools

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that asks for the answer to messages."""
        text = self._render(messages, asks=True)
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def answer_text(self, messages: Sequence[Message], answer: Message) -> str:
        """What the model must write so that the next prompt repeats it: the answer as the chat
        template writes it, without the end of the turn."""
        asked = self._render(messages, asks=True)
        probe = self._render([*messages, {"role": "assistant", "content": "X"}], asks=False)
        told = self._render([*messages, answer], asks=False)
        if not (probe.startswith(f"{asked}X") and told.startswith(asked)):
            raise WorkloadError(
                "this model's chat template writes a past answer otherwise than it asks for a new "
                "one: its answers cannot be forced"
            )
        return told[len(asked) :].removesuffix(probe[len(asked) + 1 :])

    def _render(self, messages: Sequence[Message], asks: bool) -> str:
        templated = [_with_parsed_arguments(message) for message in messages]
        text: str = self._tokenizer.apply_chat_template(
            templated, tools=self.tools or None, tokenize=False, add_generation_prompt=asks
        )
        return text


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
    return words(rng, round(session.system_tokens * scales.tokens))


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
        messages[-1] = opening | {"content": words(rng, filler)}
        output_tokens = round(turn.output_tokens * scales.tokens)
        answer, constraints = planned_answer(turn, f"call_{i}", output_tokens)
        if tokenizer.tools is not None:
            constraints = forced_text(tokenizer.answer_text(messages, answer), tokenizer.tools)
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
