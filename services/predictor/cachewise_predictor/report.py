"""What a reader of files left out, by reason, and the lines that it could not read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_BROKEN_NAMED = 1_000
MAX_REASONS = 100


@dataclass
class ReadReport:
    """Bounded, however broken the files are.

    turns: well-formed turns; skipped: what was left out, by reason; broken: the first
    MAX_BROKEN_NAMED of broken_count unreadable lines, as FILE:LINE: why.
    """

    turns: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    broken_count: int = 0

    def skip(self, reason: str) -> None:
        known = reason in self.skipped or len(self.skipped) < MAX_REASONS
        self.skipped[reason if known else "for other reasons"] += 1

    def add_broken(self, place: str, why: object) -> None:
        """why: an error, or a sentence."""
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN_NAMED:
            text = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)
            self.broken.append(f"{place}: {text[:300]}")
