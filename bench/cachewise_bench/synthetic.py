"""Sessions drawn from published statistics, for when there are no traces.

What is drawn from which statistic is in published.py. A session belongs to one of three harnesses,
whose system prompt all its sessions share. Its turns call one or more tools at once and wait for
the slowest, or end in words to a person who pauses. Some sessions compact their context when it
reaches a limit: it starts again from a summary. Some start subagents, which fork their context and
work in loops of their own; the session goes on when they are done.

Commands go with the wait, not the other way round: a long wait gets a build or a test run, a short
one a look at a file, with some noise; so the waits keep their published distribution and the
command says something about them, as in real sessions.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, replace

from cachewise_bench.published import (
    CALLS_PER_TURN,
    COMPACTING_SHARE,
    CONTEXT_LIMIT_TOKENS,
    FIRST_INPUT_TOKENS,
    GROWTH_BY_TURNS,
    GROWTH_SPREAD,
    GROWTH_TOKENS,
    GROWTH_TURNS,
    HUMAN_PAUSE_S,
    MOST_GROWTH_TOKENS,
    OUTPUT_TOKENS,
    SUBAGENT_S,
    SUBAGENT_SHARE,
    SUBAGENTS,
    SUMMARY_TOKENS,
    TOOL_CALLS_PER_ANSWER,
    TOOL_MIX,
    TOOL_S,
    TURNS,
)
from cachewise_bench.workload import MAX_WAIT_S, Session, ToolCall, Turn

HARNESSES = {"claude-code": (12_000, 60), "codex": (8_000, 25), "copilot": (10_000, 15)}
"""Tokens of the system prompt, and weight. Our choice: published traces are of one harness each."""

ANSWER_TOKENS_PER_S = 60.0
REQUEST_S = 1.0
"""How long a subagent's requests are taken to last when its turns are counted out: its published
time includes them."""

COMMANDS = (
    (
        1.0,
        (
            "git status --short",
            "ls -la src",
            "rg -n TODO src",
            "sed -n 1,80p main.go",
            "head -50 README.md",
        ),
    ),
    (
        10.0,
        (
            "git fetch origin",
            "python manage.py check",
            "ruff check .",
            "go vet ./...",
            "npm run lint",
        ),
    ),
    (60.0, ("pytest -q tests", "go test ./...", "mypy src", "cargo build", "npm test")),
    (
        math.inf,
        ("docker compose build", "make all", "cargo test --all", "npm ci", "pytest tests/e2e"),
    ),
)
"""What a shell call of at most so many seconds runs."""

COMMAND_NOISE = 0.15
"""Share of shell calls whose command is drawn without regard to the wait."""

_ARGUMENT = {
    "Read": "file_path",
    "Edit": "file_path",
    "Grep": "pattern",
    "WebFetch": "url",
    "AskUserQuestion": "question",
}


def synthetic_sessions(count: int, seed: int) -> list[Session]:
    """count sessions, subagents not counted; the same for the same seed."""
    return [_session(f"synthetic-{i}", random.Random(f"{seed}/{i}")) for i in range(count)]


def _session(name: str, rng: random.Random) -> Session:
    harness = rng.choices(list(HARNESSES), [weight for _, weight in HARNESSES.values()])[0]
    turns, system_tokens = round(TURNS.draw(rng)), HARNESSES[harness][0]
    context = _Context(rng, turns, system_tokens)
    subagents = _subagents_by_turn(rng, turns)
    made = []
    for i in range(turns):
        compacted = i > 0 and context.grow()
        turn = _turn(rng, context.prompt_tokens, name, subagents[i])
        context.answer_tokens = turn.output_tokens
        made.append(replace(turn, compacted=compacted))
    return Session(name, tuple(made), harness, system_tokens)


@dataclass
class _Context:
    """A session's prompt, as it grows and is compacted."""

    rng: random.Random
    turns: int
    system_tokens: int
    answer_tokens: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.prompt_tokens = FIRST_INPUT_TOKENS.draw(rng)
        self._factor = (self.turns / GROWTH_TURNS) ** GROWTH_BY_TURNS
        self._factor *= math.exp(rng.gauss(0.0, GROWTH_SPREAD))
        has_limit = rng.random() < COMPACTING_SHARE
        limit = CONTEXT_LIMIT_TOKENS.draw(rng)
        self._limit = max(limit, 1.3 * self.prompt_tokens) if has_limit else math.inf

    def grow(self) -> bool:
        """To the next prompt; True if it was compacted."""
        growth = min(GROWTH_TOKENS.draw(self.rng) * self._factor, MOST_GROWTH_TOKENS)
        self.prompt_tokens += max(self.answer_tokens, growth)
        if self.prompt_tokens <= self._limit:
            return False
        self.prompt_tokens = self.system_tokens + SUMMARY_TOKENS.draw(self.rng)
        return True


def _subagents_by_turn(rng: random.Random, turns: int) -> Counter[int]:
    """How many subagents each turn starts; those of one turn run in parallel."""
    if rng.random() >= SUBAGENT_SHARE:
        return Counter()
    return Counter(rng.randrange(turns) for _ in range(round(SUBAGENTS.draw(rng))))


def _turn(rng: random.Random, prompt: float, session: str, subagents: int) -> Turn:
    output = OUTPUT_TOKENS.draw(rng)
    if subagents:
        return _delegating_turn(rng, Turn.recorded(prompt, output, (), 0.0), subagents)
    if rng.random() < 1 / (TOOL_CALLS_PER_ANSWER + 1):
        return Turn.recorded(prompt, output, (), HUMAN_PAUSE_S.draw(rng))
    return _tool_turn(rng, prompt, output)


def _tool_turn(rng: random.Random, prompt: float, output: float) -> Turn:
    count = rng.choices(list(CALLS_PER_TURN), list(CALLS_PER_TURN.values()))[0]
    calls = [_tool_call(rng) for _ in range(count)]
    return Turn.recorded(prompt, output, calls, max(call.duration_s for call in calls))


def _tool_call(rng: random.Random) -> ToolCall:
    tool = rng.choices(list(TOOL_MIX), list(TOOL_MIX.values()))[0]
    wait_s = min(TOOL_S[tool].draw(rng), MAX_WAIT_S)
    if tool == "Bash":
        apparent_s = TOOL_S[tool].draw(rng) if rng.random() < COMMAND_NOISE else wait_s
        commands = next(commands for limit, commands in COMMANDS if apparent_s <= limit)
        arguments = {"command": rng.choice(commands)}
    else:
        arguments = {_ARGUMENT[tool]: f"src/module_{rng.randrange(40)}.py"}
    return ToolCall(tool, json.dumps(arguments), wait_s)


# ---- subagents -----------------------------------------------------------------------------------


def _delegating_turn(rng: random.Random, turn: Turn, count: int) -> Turn:
    """The turn with calls of count subagents."""
    times_s = [SUBAGENT_S.draw(rng) for _ in range(count)]
    calls = tuple(
        ToolCall("Agent", json.dumps({"prompt": f"look into module {rng.randrange(40)}"}), time_s)
        for time_s in times_s
    )
    subagents = tuple(
        Session(f"agent-{i}", _subagent_turns(rng, turn.context_tokens, time_s))
        for i, time_s in enumerate(times_s)
    )
    return replace(turn, tool_calls=calls, wait_s=max(times_s), subagents=subagents)


def _subagent_turns(rng: random.Random, forked_tokens: int, time_s: float) -> tuple[Turn, ...]:
    """Turns that take about that time, on top of the context that is forked."""
    turns: list[Turn] = []
    prompt = float(forked_tokens)
    while time_s > 0:
        prompt += GROWTH_TOKENS.draw(rng)
        turn = _tool_turn(rng, prompt, OUTPUT_TOKENS.draw(rng))
        time_s -= REQUEST_S + turn.output_tokens / ANSWER_TOKENS_PER_S
        turn = replace(turn, wait_s=max(0.0, min(turn.wait_s, time_s)))
        time_s -= turn.wait_s
        prompt = turn.context_tokens
        turns.append(turn)
    return (*turns[:-1], replace(turns[-1], tool_calls=(), wait_s=0.0))
