"""vllm-long-prefill: stock vLLM with --long-prefill-token-threshold 512.

vLLM's own remedy for agents' long prompts (AgentX): a prompt gets at most so many tokens of a step,
so that others' decodes and short prefills share it. At chunks of 512 tokens it changes nothing.
"""

from __future__ import annotations

from cachewise_bench.policies.base import Policy


class LongPrefill(Policy):
    name = "vllm-long-prefill"
    source = "stock vLLM, --long-prefill-token-threshold 512"
    long_prefill_threshold = 512
