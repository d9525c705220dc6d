"""vLLM's real scheduler without a worker: factories for tests. Each step's output is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
QWEN2 = {
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


def make_scheduler(
    scheduler_class: Any,
    folder: Path,
    num_blocks: int = 64,
    step_tokens: int = 256,
    asynchronous: bool = False,
    policy: str = "fcfs",
    **settings: object,
) -> Any:
    """A scheduler over num_blocks blocks of 16 tokens; settings: the `cachewise` section."""
    (folder / "config.json").write_text(json.dumps(QWEN2))
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=8192
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=step_tokens,
            max_model_len=8192,
            enable_chunked_prefill=True,
            async_scheduling=False,
            is_encoder_decoder=False,
            policy=policy,
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        additional_config={"cachewise": settings},
    )
    # The CPU platform forces async scheduling off; the scheduler class alone is wanted here.
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def make_request(
    request_id: str, tokens: list[int], max_tokens: int = 1, session: str | None = None, **more: Any
) -> Request:
    init_none_hash(sha256)
    return Request(
        request_id,
        tokens,
        SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        None,
        session_id=session,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
        **more,
    )


def step(scheduler: Any) -> Any:
    """One step: schedule, sample token 7 wherever a prompt is complete, update. The output."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    sampled = []
    for request_id in ids:
        request = scheduler.requests[request_id]
        sampled.append([7] if request.num_computed_tokens >= request.num_tokens else [])
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )
    return output


def run(scheduler: Any, most_steps: int = 10_000) -> int:
    """Steps until nothing is unfinished; how many."""
    for steps in range(most_steps):
        if not scheduler.has_unfinished_requests():
            return steps
        step(scheduler)
    raise AssertionError(f"not finished after {most_steps} steps")
