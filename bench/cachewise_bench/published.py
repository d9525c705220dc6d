"""What was published about coding-agent sessions, as quantiles to draw from.

Between two published quantiles the logarithm is interpolated. Sources:

    TraceLab (arXiv 2606.30560)     tool times and mix, calls per turn, human pauses, compaction
    kv-cache-tester (692 sessions)  turns per session, inputs, outputs, growth per turn
    AgentX                          44 % of sessions have subagents, with a median of 4
    Copilot (arXiv 2608.00101)      about 13 tool calls between two words of the user

Where only a median or two quantiles are known, the ends are ours; they are chosen so that what
follows from them (tool times of all tools together, the context over a session) is also as
published. tests/bench/test_synthetic.py compares.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantiles:
    """A positive quantity by its quantiles: (probability, value), ascending from 0 to 1."""

    points: tuple[tuple[float, float], ...]

    def at(self, probability: float) -> float:
        """The quantile; the logarithm is linear between two points."""
        i = min(max(bisect_right(self.points, (probability, math.inf)), 1), len(self.points) - 1)
        (p0, v0), (p1, v1) = self.points[i - 1], self.points[i]
        return math.exp(math.log(v0) + (probability - p0) / (p1 - p0) * math.log(v1 / v0))

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return self.at(rng.random())


# ---- sessions, in turns and tokens ---------------------------------------------------------------

TURNS = Quantiles(((0, 4), (0.5, 44), (0.9, 149), (0.99, 342), (1, 600)))
FIRST_INPUT_TOKENS = Quantiles(((0, 13_000), (0.5, 24_000), (0.9, 110_000), (1, 200_000)))
OUTPUT_TOKENS = Quantiles(((0, 40), (0.5, 217), (0.9, 894), (0.99, 3_680), (1, 8_000)))

GROWTH_TOKENS = Quantiles(((0, 60), (0.5, 700), (0.9, 2_900), (0.99, 5_600), (1, 13_000)))
"""From one prompt to the next, before the session's own factor."""

GROWTH_BY_TURNS, GROWTH_SPREAD, GROWTH_TURNS = -0.85, 0.8, 74
"""That factor: (turns / 74)^-0.85 times a log-normal one. Contexts of long sessions end hardly
larger than those of short ones, so they grow more slowly."""
MOST_GROWTH_TOKENS = 50_000

COMPACTING_SHARE = 0.24
CONTEXT_LIMIT_TOKENS = Quantiles(((0, 90_000), (0.5, 165_000), (1, 200_000)))
"""Where the context is compacted, in the sessions whose harness or model has such a limit."""
SUMMARY_TOKENS = Quantiles(((0, 3_000), (0.5, 8_000), (1, 25_000)))
"""What is left behind the system prompt. Not published."""

TOOL_CALLS_PER_ANSWER = 13
HUMAN_PAUSE_S = Quantiles(
    ((0, 5), (0.5, 86), (0.75, 300), (0.9, 1_236), (0.99, 50_040), (1, 86_400))
)

# ---- tool calls ----------------------------------------------------------------------------------

CALLS_PER_TURN = {1: 86, 2: 10, 3: 3, 4: 1}
"""Weights."""

TOOL_S = {
    "Bash": Quantiles(
        ((0, 0.04), (0.5, 0.409), (0.57, 1), (0.87, 10), (0.956, 60), (0.99, 235), (1, 3_600))
    ),
    "Read": Quantiles(((0, 0.005), (0.5, 0.036), (0.75, 0.4), (0.87, 1.2), (1, 10))),
    "Edit": Quantiles(((0, 0.01), (0.5, 0.095), (0.7, 0.8), (0.95, 5), (1, 12))),
    "Grep": Quantiles(((0, 0.01), (0.5, 0.3), (0.7, 1), (0.95, 8), (1, 20))),
    "WebFetch": Quantiles(((0, 1), (0.5, 12), (0.9, 55), (1, 180))),
    "AskUserQuestion": HUMAN_PAUSE_S,
}
"""Seconds that a call takes. Published: the medians of Bash, Read and Edit, Bash's P99, the mean of
the web tools."""

TOOL_MIX = {"Bash": 47, "Read": 22, "Edit": 13, "Grep": 11.5, "WebFetch": 3, "AskUserQuestion": 0.7}
"""Weights. The first three are published; the last is set by the overall P99 and mean."""

# ---- subagents -----------------------------------------------------------------------------------

SUBAGENT_SHARE = 0.44
SUBAGENTS = Quantiles(((0, 1), (0.5, 4), (0.9, 12), (1, 30)))
"""In a session that has any."""
SUBAGENT_S = Quantiles(((0, 3), (0.5, 24), (0.9, 115), (0.99, 560), (1, 1_200)))
"""Published: mean 63 s, P99 600 s."""
