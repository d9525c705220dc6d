"""vLLM's real scheduler without a worker: factories for tests. Each step's output is made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewise_bench import bare_scheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK = 16


def make_scheduler(
    scheduler_class: Any,
    num_blocks: int = 64,
    step_tokens: int = 256,
    policy: str = "fcfs",
    block_size: int = BLOCK,
    settings: Mapping[str, object] | None = None,
    **more: Any,
) -> Any:
    """A scheduler over num_blocks blocks; more: see bare_scheduler."""
    return bare_scheduler.make_scheduler(
        scheduler_class,
        num_blocks=num_blocks,
        block_size=block_size,
        step_tokens=step_tokens,
        settings=settings or {},
        scheduling={"max_num_seqs": 16, "policy": policy},
        log_stats=True,
        **more,
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
