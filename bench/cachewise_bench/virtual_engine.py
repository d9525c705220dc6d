"""vLLM's real scheduler, KV cache manager and block pool without a worker, on a virtual clock.

The installed package decides every step; only the time that a step takes comes from the cost
model, and block hashes name their content (session and index) instead of hashing tokens. Nothing
here reads a clock but to measure the scheduler's own CPU time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import thread_time
from typing import Any

# Before vLLM, whose environment it sets.
from cachewise_bench import bare_scheduler  # isort: skip
import torch
from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from cachewise_bench import shortcuts
from cachewise_bench.cost_model import Hardware
from cachewise_bench.offload import HostLink
from cachewise_bench.prompts import Prompt

MAX_CONTEXT_TOKENS = 1 << 20
_ANY_TOKEN, LAST_TOKEN = 1, 2


def make_scheduler(
    scheduler_class: Any,
    hardware: Hardware,
    chunk: int,
    long_prefill_threshold: int = 0,
    max_num_seqs: int = 256,
    settings: dict[str, object] | None = None,
    offload_gib: float = 0.0,
) -> Any:
    """A scheduler of the class over the hardware's pool; settings: the `cachewise` section.

    offload_gib: host memory for vLLM's own CPU offloading; 0: none.
    """
    scheduler = bare_scheduler.make_scheduler(
        scheduler_class,
        num_blocks=hardware.pool_blocks,
        block_size=hardware.block_size,
        step_tokens=chunk,
        settings=settings or {},
        scheduling={
            "max_num_seqs": max_num_seqs,
            "long_prefill_token_threshold": long_prefill_threshold,
        },
        groups=[_kv_cache_group(hardware)],
        **_offloading(offload_gib),
    )
    scheduler.max_model_len = scheduler.kv_cache_manager.max_model_len = MAX_CONTEXT_TOKENS
    return scheduler


def _kv_cache_group(hardware: Hardware) -> KVCacheGroupSpec:
    """One layer whose blocks are as large as all of the model's layers together."""
    keys_and_values = 2
    spec = FullAttentionSpec(
        block_size=hardware.block_size,
        num_kv_heads=1,
        head_size=hardware.kv_bytes_per_token // keys_and_values,
        dtype=torch.int8,
    )
    return KVCacheGroupSpec(["layer"], spec)


def _offloading(gib: float) -> dict[str, KVTransferConfig]:
    """What vLLM makes of --kv-offloading-size."""
    if not gib:
        return {}
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": gib * 2**30},
    )
    return {"kv_transfer_config": transfer}


def make_request(name: str, prompt: Prompt, block_size: int, arrived_at: float) -> Any:
    """The answer's length is min_tokens, which no scheduler looks at: it sees max_tokens."""
    sampling = SamplingParams(
        max_tokens=prompt.max_tokens or prompt.output_tokens,
        min_tokens=prompt.output_tokens,
        stop_token_ids=[LAST_TOKEN],
        ignore_eos=True,
    )
    return Request(
        name,
        [0] * prompt.tokens,
        sampling,
        None,
        arrival_time=arrived_at,
        session_id=prompt.session,
        block_hasher=block_hasher(prompt, block_size),
    )


def next_token(request: Any) -> int:
    """What the model samples: LAST_TOKEN where the answer ends with it."""
    is_last = request.num_output_tokens + 1 >= request.sampling_params.min_tokens
    return LAST_TOKEN if is_last else _ANY_TOKEN


def block_hasher(prompt: Prompt, block_size: int) -> Callable[[Any], list[bytes]]:
    """Names each full block instead of hashing it; equal names are equal contents so far."""

    def new_hashes(request: Any) -> list[bytes]:
        known, full = len(request.block_hashes), request.num_tokens // block_size
        return prompt.block_names(known, full, block_size) if known < full else []

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
        self._link = HostLink(hardware) if scheduler.connector is not None else None

    def watch(self) -> None:
        """To be called once the scheduler has its queues."""
        self._count_evictions()
        shortcuts.install(self.scheduler)

    def add(self, request: Any) -> None:
        self.scheduler.add_request(request)

    @property
    def loaded_blocks(self) -> int:
        """Blocks that came back from the CPU offload tier."""
        return self._link.loaded_blocks if self._link else 0

    @property
    def is_copying(self) -> bool:
        return self._link is not None and self._link.next_end < math.inf

    def step(self, idle_until: float) -> tuple[dict[Any, int], list[Any], list[Any]]:
        """One step: (admitted requests with their hit tokens, those that got their first token,
        those that finished).

        With nothing to schedule the clock goes to idle_until, or to the end of the next copy.
        """
        started = thread_time()
        plan = self.scheduler.schedule()
        self.scheduler_cpu_s += thread_time() - started
        by_name = self.scheduler.requests
        admitted = {by_name[r.req_id]: r.num_computed_tokens for r in plan.scheduled_new_reqs}
        if self._link is not None:
            self.now = self._link.begin_step(plan.kv_connector_metadata, self.now)
            idle_until = min(idle_until, self._link.next_end)
        if counts := plan.num_scheduled_tokens:
            work = [(tokens, by_name[r].num_computed_tokens) for r, tokens in counts.items()]
            self.now += self.hardware.step_seconds(work)
            self.steps += 1
            self.computed_tokens += plan.total_num_scheduled_tokens
        else:
            self.now = max(self.now + 1e-3, idle_until)
        first, done = [], []
        sampled: list[list[int]] = []
        for name in counts:
            request = by_name[name]
            if request.num_computed_tokens < request.num_tokens:  # Its prompt is not complete.
                sampled.append([])
                continue
            sampled.append([next_token(request)])
            if not request.num_output_tokens:
                first.append(request)
            if sampled[-1] == [LAST_TOKEN]:
                done.append(request)
        self._update(plan, sampled)
        return admitted, first, done

    def _update(self, plan: Any, sampled: list[list[int]]) -> None:
        """sampled: the new tokens of each request of the plan."""
        names = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._link.end_step(self.now) if self._link else None,
        )
        started = thread_time()
        self.scheduler.update_from_output(plan, output)
        self.scheduler_cpu_s += thread_time() - started

    def _count_evictions(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        take, cache = pool.free_block_queue.popleft_n, pool.cache_full_blocks

        def counted_take(n: int) -> list[Any]:
            """The content of what the queue hands out is lost."""
            blocks: list[Any] = take(n)
            names = [get_block_hash(held) for block in blocks if (held := block.block_hash)]
            self.evicted_blocks += len(names)
            self._evicted.update(names)
            return blocks

        def counted_cache(**call: Any) -> None:
            first, end = call["num_cached_blocks"], call["num_full_blocks"]
            again = self._evicted.intersection(call["request"].block_hashes[first:end])
            self.refilled_blocks += len(again)
            self._evicted -= again
            cache(**call)

        pool.free_block_queue.popleft_n, pool.cache_full_blocks = counted_take, counted_cache
