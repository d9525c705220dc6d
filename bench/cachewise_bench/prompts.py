"""Whose text each request of a replay holds, so that blocks of equal content have equal names.

A session's prompt begins with its harness's system prompt, then comes its own text. After a
compaction its own text is another one. A subagent's prompt begins with its parent's, up to the end
of the turn that started it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachewise_bench.workload import Session, with_subagents


class BlockNames:
    """The names of texts' blocks, made once: each request repeats its session's last prompt."""

    def __init__(self) -> None:
        self._of: dict[str, list[bytes]] = {}

    def between(self, text: str, first: int, end: int) -> list[bytes]:
        """Of the blocks [first, end) of prompts that hold this text there."""
        names = self._of.setdefault(text, [])
        names.extend(f"{text}:{i}".encode() for i in range(len(names), end))
        return names[first:end]


@dataclass(frozen=True)
class Prompt:
    """What a request holds."""

    session: str
    tokens: int
    output_tokens: int
    """How long the answer is, which is not known before it ends."""
    shared: tuple[tuple[str, int], ...]
    """The texts that it begins with: a name, and where the text ends in the prompt, in tokens."""
    own: str
    """Names the text behind these, and the answer."""
    names: BlockNames = field(default_factory=BlockNames, compare=False, repr=False)
    max_tokens: int = 0
    """What the request allows; 0: its answer's length."""

    def block_names(self, first: int, end: int, block_size: int) -> list[bytes]:
        """Of the blocks [first, end): whose text a block holds, and its index."""
        made: list[bytes] = []
        for text, tokens in self.shared:
            until = max(min(tokens // block_size, end), first)
            made += self.names.between(text, first, until)
            first = until
        return made + self.names.between(self.own, first, end)


class Prompts:
    """The prompts of sessions and their subagents."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions, self.forks = with_subagents(sessions)
        self._names = BlockNames()

    def prompt(self, index: int, turn: int) -> Prompt:
        """That of a turn of sessions[index]."""
        session = self.sessions[index]
        made = session.turns[turn]
        return Prompt(
            session.name,
            made.prompt_tokens,
            made.output_tokens,
            *self._text(index, turn),
            self._names,
        )

    def known_tokens(self, index: int, turn: int) -> int:
        """How many of the prompt's tokens were there before: in the session's last turn, in its
        parent's, or, after a compaction, in the system prompt."""
        session, fork = self.sessions[index], self.forks[index]
        if turn:
            if session.turns[turn].compacted:
                return _system_tokens(session)
            return session.turns[turn - 1].context_tokens
        return self._forked_tokens(index) if fork else 0

    def _text(self, index: int, turn: int) -> tuple[tuple[tuple[str, int], ...], str]:
        """Prompt.shared and Prompt.own."""
        session, fork = self.sessions[index], self.forks[index]
        compactions = sum(made.compacted for made in session.turns[: turn + 1])
        shared: tuple[tuple[str, int], ...] = ((f"={session.harness}", _system_tokens(session)),)
        if fork:
            inherited, parent = self._text(fork.parent, fork.turn)
            shared = (*inherited, (parent, self._forked_tokens(index)))
        return shared, f"{session.name}@{compactions}" if compactions else session.name

    def _forked_tokens(self, index: int) -> int:
        fork = self.forks[index]
        assert fork is not None
        return self.sessions[fork.parent].turns[fork.turn].context_tokens


def _system_tokens(session: Session) -> int:
    return min(session.system_tokens, session.turns[0].prompt_tokens)
