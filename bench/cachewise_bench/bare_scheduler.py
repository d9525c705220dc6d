"""vLLM's real scheduler, KV cache manager and block pool without a worker.

For the replay, which puts them on a virtual clock, and for the engine hook's tests. The model is a
configuration of a few bytes, since nothing is ever computed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

MAX_MODEL_LEN = 32_768
_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


def make_scheduler(
    scheduler_class: Any,
    *,
    num_blocks: int,
    block_size: int,
    step_tokens: int,
    settings: Mapping[str, object],
    scheduling: Mapping[str, object],
    asynchronous: bool = False,
    groups: Sequence[KVCacheGroupSpec] = (),
    tensors: Sequence[KVCacheTensor] = (),
    hash_block_size: int | None = None,
    log_stats: bool = False,
    **more: Any,
) -> Any:
    """A scheduler of the class over num_blocks blocks of block_size tokens.

    settings: the `cachewise` section. scheduling: further fields of vLLM's SchedulerConfig. groups:
    the model's KV cache groups, one of full attention if empty. tensors: where its KV cache lies,
    which only some KV connectors ask. hash_block_size: tokens per block hash where that is less
    than block_size. more: further fields of VllmConfig.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        config = VllmConfig(
            model_config=ModelConfig(
                model=folder,
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=MAX_MODEL_LEN,
            ),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=step_tokens,
                max_model_len=MAX_MODEL_LEN,
                enable_chunked_prefill=True,
                async_scheduling=False,
                is_encoder_decoder=False,
                **scheduling,
            ),
            cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=True),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig(device="cpu"),
            additional_config={"cachewise": dict(settings)},
            **more,
        )
    # The CPU platform forces async scheduling off; the scheduler class alone is wanted here.
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = num_blocks
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=list(tensors),
            kv_cache_groups=list(groups) or [full_attention(block_size)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=log_stats,
    )


def full_attention(block_size: int) -> KVCacheGroupSpec:
    """One layer of full attention; its head is one number wide."""
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheGroupSpec(["layer"], spec)
