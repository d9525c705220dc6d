"""Sessions drawn from published statistics, for when there are no traces.

Sizes, tool times and pauses follow the quantiles that were published for thousands of real
sessions: TraceLab (arXiv 2606.30560: tool mix and times, human pauses, output), kv-cache-tester
(turns per session, first input, growth), Copilot's trace (arXiv 2608.00101: about 13 tool calls
between two words of the user). Between two published quantiles the logarithm is interpolated.
Commands go with the wait, not the other way round: a long wait gets a build or a test run, a short
one a look at a file, with some noise; so the waits keep their published distribution and the
command says something about them, as in real sessions.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from cachewise_bench.workload import Session, ToolCall, Turn


@dataclass(frozen=True)
class Quantiles:
    """A positive quantity by its published quantiles: (probability, value), ascending from 0 to
    1."""

    points: tuple[tuple[float, float], ...]

    def at(self, probability: float) -> float:
        """The quantile; the logarithm is linear between two points."""
        i = min(max(bisect_right(self.points, (probability, math.inf)), 1), len(self.points) - 1)
        (p0, v0), (p1, v1) = self.points[i - 1], self.points[i]
        return math.exp(math.log(v0) + (probability - p0) / (p1 - p0) * math.log(v1 / v0))

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return self.at(rng.random())


TURNS = Quantiles(((0, 4), (0.5, 44), (0.9, 149), (0.99, 342), (1, 600)))
FIRST_INPUT_TOKENS = Quantiles(((0, 12_000), (0.5, 24_000), (0.9, 60_000), (1, 134_000)))
GROWTH_TOKENS = Quantiles(((0, 60), (0.5, 685), (0.9, 3_796), (0.99, 17_051), (1, 30_000)))
OUTPUT_TOKENS = Quantiles(((0, 40), (0.5, 217), (0.9, 894), (0.99, 3_680), (1, 8_000)))
HUMAN_PAUSE_S = Quantiles(((0, 5), (0.5, 86), (0.9, 1_236), (0.99, 50_040), (1, 86_400)))
TOOL_CALLS_PER_ANSWER = 13

TOOL_WAIT_S = {
    "Bash": Quantiles(
        ((0, 0.05), (0.5, 0.409), (0.65, 2), (0.85, 12), (0.95, 60), (0.99, 235), (1, 600))
    ),
    "Read": Quantiles(((0, 0.005), (0.5, 0.036), (0.8, 0.5), (0.95, 2.5), (1, 10))),
    "Edit": Quantiles(((0, 0.01), (0.5, 0.095), (0.85, 1.2), (1, 8))),
    "Grep": Quantiles(((0, 0.01), (0.5, 0.3), (0.85, 2), (1, 20))),
    "WebFetch": Quantiles(((0, 1), (0.5, 12), (0.9, 55), (1, 180))),
    "Agent": Quantiles(((0, 5), (0.5, 30), (0.9, 150), (0.99, 600), (1, 1_200))),
}
"""Seconds that a call takes. Bash and Edit, Read: published medians; the tails are set to the
means and P99 given."""

TOOL_MIX = {"Bash": 47, "Read": 22, "Edit": 13, "Grep": 12, "WebFetch": 3, "Agent": 3}

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


def synthetic_sessions(count: int, seed: int) -> list[Session]:
    """count sessions; the same for the same seed."""
    return [_session(f"synthetic-{i}", random.Random(f"{seed}/{i}")) for i in range(count)]


def _session(name: str, rng: random.Random) -> Session:
    turns = []
    prompt = FIRST_INPUT_TOKENS.draw(rng)
    for _ in range(round(TURNS.draw(rng))):
        output = OUTPUT_TOKENS.draw(rng)
        if rng.random() < 1 / (TOOL_CALLS_PER_ANSWER + 1):
            turns.append(Turn.recorded(prompt, output, (), HUMAN_PAUSE_S.draw(rng)))
        else:
            call = _tool_call(rng)
            turns.append(Turn.recorded(prompt, output, (call,), call.duration_s))
        prompt += max(output, GROWTH_TOKENS.draw(rng))
    return Session(name, tuple(turns))


def _tool_call(rng: random.Random) -> ToolCall:
    tool = rng.choices(list(TOOL_MIX), list(TOOL_MIX.values()))[0]
    wait = TOOL_WAIT_S[tool].draw(rng)
    if tool == "Bash":
        apparent = TOOL_WAIT_S[tool].draw(rng) if rng.random() < COMMAND_NOISE else wait
        commands = next(commands for limit, commands in COMMANDS if apparent <= limit)
        arguments = {"command": rng.choice(commands)}
    else:
        arguments = {_ARGUMENT[tool]: f"src/module_{rng.randrange(40)}.py"}
    return ToolCall(tool, json.dumps(arguments), wait)


_ARGUMENT = {
    "Read": "file_path",
    "Edit": "file_path",
    "Grep": "pattern",
    "WebFetch": "url",
    "Agent": "prompt",
}
