"""What is replayed: sessions of turns, each turn with the sizes and the wait that a real agent had.

A session here is a chain: its context only grows. Where a log shows that it shrank (the agent
compacted it or edited its history), the session is cut in two, since the second part no longer
repeats the first as its prefix. A turn that says that it was compacted is no cut: it begins again
behind the system prompt.
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

SYSTEM_PROMPT_TOKENS = 12_000
"""System prompt and tool descriptions that the sessions of one harness share, where a log does not
say."""

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
    compacted: bool = False
    """Before this turn the context was replaced by a summary, behind the same system prompt."""
    subagents: tuple[Session, ...] = ()
    """Started by the turn's calls. They repeat the context up to the end of this turn, and the
    session's next request waits for the last of them."""

    @property
    def context_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens

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
    harness: str = "system"
    """Sessions of one harness begin with the same system prompt."""
    system_tokens: int = SYSTEM_PROMPT_TOKENS
    """The length of that prompt; at most that of the first prompt counts."""


@dataclass(frozen=True)
class Fork:
    """Where a subagent begins: behind this turn of its parent, an index into the same list."""

    parent: int
    turn: int


def with_subagents(sessions: Iterable[Session]) -> tuple[list[Session], list[Fork | None]]:
    """All sessions, the given ones first, and where each subagent forks (None for the given). A
    session that ends after a turn does not start that turn's subagents."""
    every = list(sessions)
    forks: list[Fork | None] = [None] * len(every)
    for parent, session in enumerate(every):  # Grows on the way: subagents may have their own.
        for turn, started in enumerate(session.turns[:-1]):
            for subagent in started.subagents:
                every.append(replace(subagent, name=f"{session.name}/{turn}/{subagent.name}"))
                forks.append(Fork(parent, turn))
    return every, forks


def chains(session: Session, context_cap: int) -> list[Session]:
    """Cuts a session where its context shrinks, and ends a chain where it passes context_cap
    tokens."""
    found: list[list[Turn]] = [[]]
    for turn in session.turns:
        before = found[-1][-1] if found[-1] else None
        if before and turn.prompt_tokens < before.prompt_tokens and not turn.compacted:
            shrunk = before.prompt_tokens - turn.prompt_tokens > SHRINK_TOLERANCE_TOKENS
            if shrunk:
                found.append([])
            else:
                turn = replace(turn, prompt_tokens=before.prompt_tokens)
        if turn.context_tokens > context_cap:
            found.append([])
        else:
            found[-1].append(_with_capped_subagents(turn, context_cap))
    return [
        replace(session, name=session.name if i == 0 else f"{session.name}#{i}", turns=tuple(chain))
        for i, chain in enumerate(chain for chain in found if chain)
    ]


def _with_capped_subagents(turn: Turn, context_cap: int) -> Turn:
    """The turn with what its subagents do within context_cap tokens."""
    if not turn.subagents:
        return turn
    capped = (chains(subagent, context_cap)[:1] for subagent in turn.subagents)
    return replace(turn, subagents=tuple(subagent for chain in capped for subagent in chain))


def usable_chains(sessions: Iterable[Session], turn_cap: int, context_cap: int) -> list[Session]:
    """The chains that are long enough to be drawn. Raises WorkloadError when there is none."""
    found = [chain for session in sessions for chain in chains(session, context_cap)]
    if not found:
        raise WorkloadError(
            f"no session has a turn within {context_cap:,} tokens: give a larger --context-cap"
        )
    least = min(MIN_CHAIN_TURNS, turn_cap, max(len(chain.turns) for chain in found))
    return [chain for chain in found if len(chain.turns) >= least]


def choose_sessions(
    sessions: Iterable[Session], count: int, turn_cap: int, context_cap: int, seed: int
) -> list[Session]:
    """count chains of at most turn_cap turns, drawn by seed; drawn again under other names when
    there are too few.

    Raises WorkloadError when there is no chain at all.
    """
    usable = usable_chains(sessions, turn_cap, context_cap)
    random.Random(seed).shuffle(usable)
    rounds, rest = divmod(count, len(usable))
    drawn = [
        replace(chain, name=f"{chain.name}~{i}" if i else chain.name)
        for i in range(rounds + 1)
        for chain in (usable if i < rounds else usable[:rest])
    ]
    return [replace(chain, turns=chain.turns[:turn_cap]) for chain in drawn]
