"""How long a step takes on given hardware: the clock of the replay.

    step = interp(tokens in the batch)            dense layers, by measured batch sizes
         + a * sum(context of decodes)            attention of decodes reads their whole context
         + b * sum(chunk * context of prefills)   attention of prefills is quadratic
         + host                                   scheduler and launch

Hardware is a TOML file with the fields below; presets lie in hardware/.
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from cachewise_bench.workload import Session, WorkloadError


@dataclass(frozen=True)
class Hardware:
    """A model on a set of cards. Times in milliseconds unless the name says otherwise."""

    name: str
    kv_bytes_per_token: int
    pool_blocks: int
    block_size: int
    step_tokens: tuple[float, ...]
    """Batch sizes at which the dense part was measured, ascending."""
    step_ms: tuple[float, ...]
    decode_ms_per_context_token: float
    prefill_ms_per_token_and_context_token: float
    host_ms: float
    pcie_gb_per_s: float = 25.0
    """Between the cards and host memory, each way, all cards together; by default what one PCIe 4.0
    x16 link gives."""

    def __post_init__(self) -> None:
        for name in ("kv_bytes_per_token", "pool_blocks", "block_size"):
            self._check(name, int, "a whole number", least=1)
        for name in (
            "decode_ms_per_context_token",
            "prefill_ms_per_token_and_context_token",
            "host_ms",
        ):
            self._check(name, (int, float), "a number", least=0)
        self._check("pcie_gb_per_s", (int, float), "a number", least=1e-3)
        self._check_steps()

    def _check(
        self, name: str, kind: type[int] | tuple[type, ...], what: str, least: float
    ) -> None:
        value: Any = getattr(self, name)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or not least <= value < math.inf:
            raise WorkloadError(
                f"{self.name}: {name} must be {what} of {least} or more, not {value!r}"
            )

    def _check_steps(self) -> None:
        knots = self.step_tokens
        if len(knots) != len(self.step_ms) or len(knots) < 2:
            raise WorkloadError(
                f"{self.name}: step_tokens and step_ms need equal lengths, 2 or more"
            )
        if any(not a < b for a, b in zip(knots, knots[1:], strict=False)) or min(self.step_ms) <= 0:
            raise WorkloadError(f"{self.name}: step_tokens must ascend and step_ms be positive")

    @classmethod
    def load(cls, name_or_path: str) -> Hardware:
        """A preset by name or a TOML file by path. Raises WorkloadError naming the field."""
        folder = resources.files("cachewise_bench") / "hardware"
        preset = folder / f"{name_or_path}.toml"
        path = Path(name_or_path)
        if preset.is_file():
            text = preset.read_text()
        elif path.is_file():
            text = path.read_text()
        else:
            known = sorted(p.name.removesuffix(".toml") for p in folder.iterdir())
            raise WorkloadError(
                f"no hardware {name_or_path!r}: give a TOML file or one of {', '.join(known)}"
            )
        return cls._parse(name_or_path, text)

    @classmethod
    def _parse(cls, source: str, text: str) -> Hardware:
        try:
            values = tomllib.loads(text)
            for key in ("step_tokens", "step_ms"):
                values[key] = tuple(float(v) for v in values[key])
            return cls(**values)
        except (tomllib.TOMLDecodeError, TypeError, KeyError, ValueError) as error:
            if isinstance(error, WorkloadError):
                raise
            names = ", ".join(f.name for f in fields(cls))
            raise WorkloadError(f"{source}: {error}; the fields are {names}") from None

    def step_seconds(self, work: Iterable[tuple[int, int]]) -> float:
        """work: (tokens of the request in this step, its context after the step)."""
        total, attention_ms = 0, 0.0
        for tokens, context in work:
            total += tokens
            if tokens == 1:
                attention_ms += self.decode_ms_per_context_token * context
            else:
                attention_ms += self.prefill_ms_per_token_and_context_token * tokens * context
        return (self._dense_ms(total) + attention_ms + self.host_ms) / 1e3

    def prefill_seconds(self, tokens: int, start: int = 0, chunk: int = 512) -> float:
        """Time to prefill alone tokens [start, tokens) in chunks: what losing them costs."""
        chunks = range(start, tokens, chunk)
        return sum(
            self.step_seconds([(min(chunk, tokens - at), min(at + chunk, tokens))]) for at in chunks
        )

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token

    def transfer_seconds(self, blocks: int) -> float:
        """Time to copy blocks between the cards and host memory, one way."""
        return blocks * self.block_bytes / (self.pcie_gb_per_s * 1e9)

    def check_holds(self, sessions: Sequence[Session]) -> None:
        """Raises WorkloadError naming the first session that the pool cannot hold."""
        for session in sessions:
            tokens = max(turn.prompt_tokens + turn.output_tokens for turn in session.turns)
            blocks = -(-tokens // self.block_size) + 1
            if blocks >= self.pool_blocks:
                raise WorkloadError(
                    f"session {session.name} needs {blocks:,} blocks and the pool of {self.name} "
                    f"has {self.pool_blocks:,}: lower --context-cap or take larger hardware"
                )

    def _dense_ms(self, tokens: float) -> float:
        """Linear between the knots, constant below the first, in proportion beyond the last."""
        xs, ys = self.step_tokens, self.step_ms
        if tokens <= xs[0]:
            return ys[0]
        if tokens >= xs[-1]:
            return ys[-1] * tokens / xs[-1]
        i = bisect_right(xs, tokens)
        return ys[i - 1] + (ys[i] - ys[i - 1]) * (tokens - xs[i - 1]) / (xs[i] - xs[i - 1])
