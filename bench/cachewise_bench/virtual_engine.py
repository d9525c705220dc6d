"""vLLM's real scheduler, KV cache manager and block pool without a worker, on a virtual clock.

The installed package decides every step; only the time that a step takes comes from the cost
model, and block hashes name their content (session and index) instead of hashing tokens. Nothing
here reads a clock but to measure the scheduler's own CPU time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from cachewise_bench.cost_model import Hardware

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# vLLM reads its environment when it is imported.
import torch  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

MAX_CONTEXT_TOKENS = 1 << 20
_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 32768,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Prompt:
    """What a request holds: a shared beginning, then the session's own text."""

    session: str
    tokens: int
    output_tokens: int
    shared: str = ""
    """Name of the system prompt that sessions share."""
    shared_tokens: int = 0


def make_scheduler(
    scheduler_class: Any,
    hardware: Hardware,
    chunk: int,
    long_prefill_threshold: int = 0,
    max_num_seqs: int = 256,
    settings: dict[str, object] | None = None,
) -> Any:
    """A scheduler of the class over the hardware's pool; settings: the `cachewise` section."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        config = VllmConfig(
            model_config=ModelConfig(
                model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=32768
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=chunk,
                max_model_len=32768,
                enable_chunked_prefill=True,
                async_scheduling=False,
                is_encoder_decoder=False,
                long_prefill_token_threshold=long_prefill_threshold,
            ),
            cache_config=CacheConfig(block_size=hardware.block_size, enable_prefix_caching=True),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig(device="cpu"),
            additional_config={"cachewise": settings or {}},
        )
    config.cache_config.num_gpu_blocks = hardware.pool_blocks
    spec = FullAttentionSpec(
        block_size=hardware.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    scheduler = scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=hardware.pool_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=hardware.block_size,
        log_stats=False,
    )
    scheduler.max_model_len = scheduler.kv_cache_manager.max_model_len = MAX_CONTEXT_TOKENS
    return scheduler


def make_request(name: str, prompt: Prompt, block_size: int, arrived_at: float) -> Any:
    return Request(
        name,
        [0] * prompt.tokens,
        SamplingParams(max_tokens=prompt.output_tokens, ignore_eos=True),
        None,
        arrival_time=arrived_at,
        session_id=prompt.session,
        block_hasher=_hasher(prompt, block_size),
    )


def _hasher(prompt: Prompt, block_size: int) -> Callable[[Any], list[bytes]]:
    """Names each full block by whose text it holds and its index: a chain of contents."""
    shared_blocks = prompt.shared_tokens // block_size
    shared, own = f"={prompt.shared}:", f"{prompt.session}:"

    def new_hashes(request: Any) -> list[bytes]:
        known, full = len(request.block_hashes), request.num_tokens // block_size
        return [f"{shared if i < shared_blocks else own}{i}".encode() for i in range(known, full)]

    return new_hashes


class VirtualEngine:
    """One scheduler and its clock. `now` is seconds since the start of the replay."""

    def __init__(self, scheduler: Any, hardware: Hardware) -> None:
        self.scheduler, self.hardware = scheduler, hardware
        self.now = 0.0
        self.steps = 0
        self.scheduler_cpu_s = 0.0
        self.computed_tokens = 0
        self.evicted_blocks = self.refilled_blocks = 0
        self._evicted: set[bytes] = set()
        self._count_evictions()

    def add(self, request: Any) -> None:
        self.scheduler.add_request(request)

    def step(self, idle_until: float) -> tuple[dict[Any, int], list[Any], list[Any]]:
        """One step: (admitted requests with their hit tokens, those that got their first token,
        those that finished).

        With nothing to schedule the clock goes to idle_until.
        """
        started = perf_counter()
        plan = self.scheduler.schedule()
        self.scheduler_cpu_s += perf_counter() - started
        requests = [self.scheduler.requests[i] for i in plan.num_scheduled_tokens]
        counts = plan.num_scheduled_tokens
        admitted = {
            self.scheduler.requests[r.req_id]: r.num_computed_tokens
            for r in plan.scheduled_new_reqs
        }
        if requests:
            work = [(counts[r.request_id], r.num_computed_tokens) for r in requests]
            self.now += self.hardware.step_seconds(work)
            self.steps += 1
            self.computed_tokens += plan.total_num_scheduled_tokens
        else:
            self.now = max(self.now + 1e-3, idle_until)
        first = [r for r in requests if _samples(r) and not r.num_output_tokens]
        done = [r for r in requests if _samples(r) and r.num_output_tokens + 1 >= r.max_tokens]
        self._update(plan, requests)
        return admitted, first, done

    def _update(self, plan: Any, requests: list[Any]) -> None:
        output = ModelRunnerOutput(
            req_ids=[r.request_id for r in requests],
            req_id_to_index={r.request_id: i for i, r in enumerate(requests)},
            sampled_token_ids=[[1] if _samples(r) else [] for r in requests],
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        started = perf_counter()
        self.scheduler.update_from_output(plan, output)
        self.scheduler_cpu_s += perf_counter() - started

    def _count_evictions(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        evict, insert = pool._maybe_evict_cached_block, pool._insert_block_hash

        def counted_evict(block: Any) -> bool:
            if block.block_hash is not None:
                self.evicted_blocks += 1
                self._evicted.add(block.block_hash)
            return bool(evict(block))

        def counted_insert(block_hash: bytes, block: Any, num_tokens: int | None) -> None:
            if block_hash in self._evicted:
                self._evicted.discard(block_hash)
                self.refilled_blocks += 1
            insert(block_hash, block, num_tokens)

        pool._maybe_evict_cached_block, pool._insert_block_hash = counted_evict, counted_insert


def _samples(request: Any) -> bool:
    """Whether this step ends with a new token for the request: its prompt is complete."""
    return bool(request.num_computed_tokens >= request.num_tokens)
