"""A worker whose KV cache remembers what was written where, and checks all that is read.

The model is a pure function: the next token depends on all tokens before it and on the LoRA
adapter. So what a request must answer is known beforehand, and so is what every slot of its blocks
must hold. A block that two requests were given at once, that was handed out although it was needed,
or that was found under a wrong hash shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

VOCABULARY = 250
Content = tuple[int, int]
"""What a slot holds: KV cache group, and the digest of all tokens up to its own."""


def digests(tokens: list[int], adapter: int = 0) -> Iterator[int]:
    """One for each token, of it and all before it."""
    digest = hash(("model", adapter))
    for token in tokens:
        digest = hash((digest, token))
        yield digest


def next_token(digest: int) -> int:
    return digest % VOCABULARY


def answer(prompt: list[int], length: int, adapter: int = 0) -> list[int]:
    """What the model answers to the prompt."""
    tokens, (*_, digest) = [], digests(prompt, adapter)
    for _ in range(length):
        tokens.append(next_token(digest))
        digest = hash((digest, tokens[-1]))
    return tokens


class Worker:
    """Executes what one scheduler plans. transfers: what its KV connector asks for, if any."""

    def __init__(
        self,
        scheduler: Any,
        transfers: Callable[[Any, dict[tuple[int, int], Content]], KVConnectorOutput] | None = None,
    ) -> None:
        self._scheduler, self._transfers = scheduler, transfers
        specs = [g.kv_cache_spec for g in scheduler.kv_cache_config.kv_cache_groups]
        self._block_sizes = [spec.block_size for spec in specs]
        self._windows = [
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 1 << 30
            for spec in specs
        ]
        self._slots: dict[tuple[int, int], Content] = {}
        """Content by block and place in the block."""
        self._tables: dict[str, list[list[int]]] = {}
        """Block ids of each request, by KV cache group."""

    def execute(self, plan: Any) -> ModelRunnerOutput:
        """Right after schedule(): later the scheduler's requests would say something else."""
        for request_id in plan.finished_req_ids:
            self._tables.pop(request_id, None)
        starts = self._take_tables(plan)
        moved = (
            self._transfers(plan.kv_connector_metadata, self._slots) if self._transfers else None
        )
        ids = list(plan.num_scheduled_tokens)
        sampled = [self._run(i, starts[i], plan.num_scheduled_tokens[i]) for i in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=moved,
        )

    def _take_tables(self, plan: Any) -> dict[str, int]:
        """Keeps the block tables as vLLM's worker does; tokens computed before, by request."""
        starts = {}
        for new in plan.scheduled_new_reqs:
            self._tables[new.req_id] = [list(ids) for ids in new.block_ids]
            starts[new.req_id] = new.num_computed_tokens
        known = plan.scheduled_cached_reqs
        for request_id, blocks, start in zip(
            known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True
        ):
            if request_id in known.resumed_req_ids:
                self._tables[request_id] = [[] for _ in self._block_sizes]
            for table, ids in zip(self._tables[request_id], blocks or (), strict=False):
                table.extend(ids)
            starts[request_id] = start
        return starts

    def _run(self, request_id: str, start: int, count: int) -> list[int]:
        """Reads and checks what was computed before, writes what is new; the sampled tokens."""
        request = self._scheduler.requests[request_id]
        contents = self._digests_to(request, start + count)
        for group, table in enumerate(self._tables[request_id]):
            size = self._block_sizes[group]
            for place in range(max(0, start - self._windows[group] + 1), start):
                slot = (table[place // size], place % size)
                assert self._slots.get(slot) == (group, contents[place]), (
                    f"{request_id} finds something else at token {place} in block {slot[0]}"
                )
            for place in range(start, start + count):
                assert table[place // size] != 0, "the null block is never written"
                self._slots[table[place // size], place % size] = (group, contents[place])
        return [] if request.is_prefill_chunk else [next_token(contents[-1])]

    def _digests_to(self, request: Any, length: int) -> list[int]:
        """Of the request's first tokens; those still in flight are what the model will sample."""
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        found = list(digests(list(request.all_token_ids)[:length], adapter))
        while len(found) < length:
            found.append(hash((found[-1], next_token(found[-1]))))
        return found
