"""What is replayed: sessions of turns, each turn with the sizes and the wait that a real agent had.

A session here is a chain: its context only grows. Where an agent compacted its context or edited
its history, the session is cut in two, since the second part no longer repeats the first as its
prefix.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

MAX_WAIT_S = 3600.0
"""Waits are clipped here: laptops sleep."""

SHRINK_TOLERANCE_TOKENS = 64
"""A prompt this much shorter than context before it still counts as the same chain: logs count a
little loosely."""

MIN_CHAIN_TURNS = 12
"""Shorter chains are left out where there are longer ones: they have little to reuse."""

OUTPUT_RANGE_TOKENS = (16, 4000)
CHARS_TO_TOKENS = 0.4
"""For logs that kept an answer's text and not its token count."""


class WorkloadError(ValueError):
    """The sessions cannot be replayed as asked; the message says what to change."""


@dataclass(frozen=True)
class ToolCall:
    """One call that the model emitted."""

    name: str
    arguments: str
    """What was called, as JSON text or as the harness wrote it."""
    duration_s: float = 0.0


@dataclass(frozen=True)
class Turn:
    """One LLM request and its response, and the wait after it."""

    prompt_tokens: int
    output_tokens: int
    tool_calls: tuple[ToolCall, ...]
    """Empty: the model answered in words and a person comes next."""
    wait_s: float
    """From the end of the response to the session's next request; 0 where there is none."""

    @classmethod
    def recorded(
        cls,
        prompt_tokens: float,
        output_tokens: float,
        tool_calls: Iterable[ToolCall],
        wait_s: float,
    ) -> Turn:
        """A turn from a log, its output and wait brought into a sensible range."""
        low, high = OUTPUT_RANGE_TOKENS
        output = max(low, min(high, int(output_tokens)))
        wait_s = max(0.0, min(MAX_WAIT_S, wait_s))
        return cls(int(prompt_tokens), output, tuple(tool_calls), wait_s)


@dataclass(frozen=True)
class Session:
    """A chain of turns, each prompt of which repeats what came before."""

    name: str
    turns: tuple[Turn, ...]

    @property
    def final_context_tokens(self) -> int:
        """Prompt and answer of the last turn."""
        return self.turns[-1].prompt_tokens + self.turns[-1].output_tokens


def chains(name: str, turns: Iterable[Turn], context_cap: int) -> list[Session]:
    """Cuts a session where its context shrinks, and ends a chain where it passes context_cap
    tokens."""
    found: list[list[Turn]] = [[]]
    for turn in turns:
        before = found[-1][-1] if found[-1] else None
        if before and turn.prompt_tokens < before.prompt_tokens:
            shrunk = before.prompt_tokens - turn.prompt_tokens > SHRINK_TOLERANCE_TOKENS
            if shrunk:
                found.append([])
            else:
                turn = replace(turn, prompt_tokens=before.prompt_tokens)
        if turn.prompt_tokens + turn.output_tokens > context_cap:
            found.append([])
        else:
            found[-1].append(turn)
    return [
        Session(name if i == 0 else f"{name}#{i}", tuple(chain))
        for i, chain in enumerate(chain for chain in found if chain)
    ]


def choose_sessions(
    sessions: Iterable[Session], count: int, turn_cap: int, context_cap: int, seed: int
) -> list[Session]:
    """count chains of at most turn_cap turns, drawn by seed; drawn again under other names when
    there are too few.

    Raises WorkloadError when there is no chain at all.
    """
    found = [
        chain for session in sessions for chain in chains(session.name, session.turns, context_cap)
    ]
    if not found:
        raise WorkloadError(
            f"no session has a turn within {context_cap:,} tokens: give a larger --context-cap"
        )
    least = min(MIN_CHAIN_TURNS, turn_cap, max(len(chain.turns) for chain in found))
    usable = [chain for chain in found if len(chain.turns) >= least]
    random.Random(seed).shuffle(usable)
    rounds, rest = divmod(count, len(usable))
    drawn = [
        replace(chain, name=f"{chain.name}~{i}" if i else chain.name)
        for i in range(rounds + 1)
        for chain in (usable if i < rounds else usable[:rest])
    ]
    return [replace(chain, turns=chain.turns[:turn_cap]) for chain in drawn]
