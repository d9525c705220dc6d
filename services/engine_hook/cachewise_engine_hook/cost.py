"""What a request still takes of the pool, in blocks, and what computing takes, in seconds."""

from __future__ import annotations

from typing import Protocol

from cachewise_engine_hook.admission import OUTPUT_TOKENS

_FULL_STEP_TOKENS = 256
"""Steps with fewer say more of what a step costs than of what a token does."""
_SAMPLE_WEIGHT = 0.05
_FIRST_SECONDS_PER_TOKEN = 1e-4

QUADRATIC_FROM_TOKENS = 100_000
"""A context of this length: attention over it takes as many operations as all else. In decoders it
is about parameters / (layers * hidden size): 99,000 for Qwen2.5 32B, 107,000 for Llama 3 70B,
61,000 for Llama 3 8B."""
_TYPICAL_TOKENS, _LEAST_TOKENS = 50_000, 1_000


class SizedRequest(Protocol):
    """What is used of vLLM's Request."""

    num_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int


def blocks_to_come(request: SizedRequest, block_size: int) -> int:
    """Blocks that a running request will still take: the rest of its prompt, and its answer."""
    missing = max(request.num_tokens - request.num_computed_tokens, 0)
    return missing // block_size + output_blocks(request, block_size)


def output_blocks(request: SizedRequest, block_size: int) -> int:
    """Blocks that are kept for the rest of its answer."""
    to_come = min(request.max_tokens, OUTPUT_TOKENS) - request.num_output_tokens
    return max(to_come, 0) // block_size + 1


def relative_cost(context_tokens: int) -> float:
    """What computing the context takes, in contexts of 50,000 tokens: attention is quadratic.

    A ratio, so that the engine's speed and its changes do not matter. Contexts below 1,000 tokens
    count as that.
    """
    return _operations(max(context_tokens, _LEAST_TOKENS)) / _operations(_TYPICAL_TOKENS)


def _operations(tokens: int) -> float:
    return tokens * (1 + tokens / QUADRATIC_FROM_TOKENS)


class Speed:
    """How fast the engine computes: a moving average over steps that had much to compute."""

    def __init__(self) -> None:
        self.seconds_per_token = _FIRST_SECONDS_PER_TOKEN
        self._began_at, self._tokens = 0.0, 0

    def begin_step(self, now: float) -> None:
        """Seconds of the engine's clock."""
        seconds, self._began_at = now - self._began_at, now
        if self._tokens >= _FULL_STEP_TOKENS and seconds > 0:
            sample = seconds / self._tokens
            self.seconds_per_token += _SAMPLE_WEIGHT * (sample - self.seconds_per_token)

    def seconds_for(self, tokens: int) -> float:
        """To compute so many tokens of a prompt."""
        return tokens * self.seconds_per_token

    def end_step(self, tokens: int) -> None:
        """tokens: of the whole batch."""
        self._tokens = tokens
