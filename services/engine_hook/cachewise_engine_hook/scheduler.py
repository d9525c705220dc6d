"""CacheWise's scheduler class for vLLM, and the only file that imports vLLM.

    vllm serve MODEL --scheduler-cls cachewise_engine_hook.scheduler.CacheWiseScheduler

It subclasses vLLM's own scheduler and changes who goes next, never how a step is built: the waiting
queue and the pool's free queue are replaced by ours, and a few methods tell the hook what happens.
"""

from __future__ import annotations

import logging
import math
import os
import time
from itertools import chain, zip_longest
from typing import Any

import vllm
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

from cachewise_engine_hook import check
from cachewise_engine_hook.claimed_blocks import ClaimedFreeQueue
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.forecasts import ForecastLink
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.hook import EngineHook, Request
from cachewise_engine_hook.listing import claims_listing, decisions_listing, serve
from cachewise_engine_hook.metrics import EngineCollector
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.sessions import SessionTable
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue

# A child of vLLM's logger, so that its handlers and levels hold for ours.
logger = logging.getLogger("vllm.cachewise")


class CacheWiseScheduler(Scheduler):
    """vLLM's scheduler with CacheWise's order; CacheWiseAsyncScheduler under async scheduling.

    Raises ConfigError for a bad setting and UnsupportedVllm for a vLLM that the hook does not know.
    """

    clock = staticmethod(time.monotonic)
    """Seconds; the only clock that decisions see."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> CacheWiseScheduler:
        # Nothing in vLLM checks that the base fits; the wrong one costs much (vLLM PR 43724).
        if cls is CacheWiseScheduler and vllm_config.scheduler_config.async_scheduling:
            cls = CacheWiseAsyncScheduler
        return object.__new__(cls)

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        config = Config.load(vllm_config.additional_config, os.environ)
        self._hook: EngineHook | None = None
        self._resident_blocks: dict[str, int] = {}
        """Of the prefix of each request in the engine, when it was last looked up."""
        problems = self._problems()
        if problems and config.fallback:
            logger.error("CacheWise is off, this is stock vLLM: %s", "; ".join(problems))
            return
        check.raise_if(problems, vllm.__version__)
        self._hook = self._install(config)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        hook = self._hook
        if hook is None:
            return super().schedule(*args, **kwargs)
        hook.begin_step(self.clock(), self.running)
        output = super().schedule(*args, **kwargs)
        hook.end_step(output.num_scheduled_tokens, output.total_num_scheduled_tokens)
        # Where all that waits is parked this may be empty. Nothing is to be done about it here:
        # vLLM's loop pauses for a millisecond after each step that ran nothing.
        return output

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        # A known id is the next chunk of a streaming-input session, not a new request.
        if self._hook is not None and request.request_id not in self.requests:
            self._hook.request_arrived(request, self.clock())
        super().add_request(request, *args, **kwargs)

    def _free_request_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._hook is not None:
            blocks = self._blocks_in_use(request)
            self._hook.blocks_freed(request, blocks, self.clock(), request.is_finished())
        return super()._free_request_blocks(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._hook is not None:
            self._hook.request_finished(request, self.clock())
            self._resident_blocks.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        is_reset = bool(super().reset_prefix_cache(*args, **kwargs))
        if is_reset and self._hook is not None:
            self._hook.claims.end_all("the prefix cache was reset", self.clock())
            self._hook.free_queue.forget_contents()
            self._hook.waiting_queue.look_up_all_again()
        return is_reset

    def shutdown(self) -> None:
        if self._hook is not None:
            self._hook.stop()
        super().shutdown()

    # ---- start-up -------------------------------------------------------------------------------

    def _problems(self) -> list[str]:
        pool = getattr(self.kv_cache_manager, "block_pool", None)
        coordinator = getattr(self.kv_cache_manager, "coordinator", None)
        return [
            *check.version_problems(vllm.__version__),
            *check.class_problems(Scheduler),
            *check.attribute_problems("Scheduler", self, check.SCHEDULER_ATTRIBUTES),
            *check.attribute_problems("BlockPool", pool, check.BLOCK_POOL_ATTRIBUTES),
            *check.attribute_problems(
                "KVCacheCoordinator", coordinator, check.COORDINATOR_ATTRIBUTES
            ),
            *check.replacement_problems(FreeKVCacheBlockQueue, PredictiveFreeQueue),
            *check.replacement_problems(FreeKVCacheBlockQueue, ClaimedFreeQueue),
            *check.replacement_problems(RequestQueue, PrefixAwareQueue),
        ]

    def _install(self, config: Config) -> EngineHook:
        groups = self.kv_cache_config.kv_cache_groups
        self._has_full_attention_alone = len(groups) == 1 and isinstance(
            groups[0].kv_cache_spec, FullAttentionSpec
        )
        pool = self.kv_cache_manager.block_pool
        rank = self.parallel_config.data_parallel_index
        replica = f"{config.replica}/dp{rank}" if rank else config.replica
        link = ForecastLink(config.predictor, replica, config.tenant) if config.predictor else None
        sessions = SessionTable(config.max_sessions)
        free = pool.free_block_queue.get_all_free_blocks()
        free_queue = PredictiveFreeQueue(free, pool.num_gpu_blocks, sessions)
        waiting: PrefixAwareQueue[Request] = PrefixAwareQueue(
            self._missing_blocks,
            config.max_overtakes,
            config.max_wait_s,
            by_priority=self.scheduler_config.policy == "priority",
        )
        block_tokens = self._tokens_per_block()
        hook = EngineHook(
            config, sessions, free_queue, waiting, link, pool.num_gpu_blocks, block_tokens
        )
        free_queue.reuse = hook.reuse
        pool.free_block_queue, self.waiting = hook.claims.queue, waiting
        if link is not None:
            link.start()
        if config.metrics_port:
            self._open_port(hook, config, config.metrics_port + rank)
        logger.info("CacheWise is on: predictor %s", config.predictor or "none")
        return hook

    def _open_port(self, hook: EngineHook, config: Config, port: int) -> None:
        listings = {
            "/claims": claims_listing(hook.claims, self.clock),
            "/decisions": decisions_listing(hook.trace, self.clock),
        }
        serve(config.metrics_host, port, config.id_key, EngineCollector(Readings(hook)), listings)

    def _blocks_in_use(self, request: Any) -> list[Any]:
        """The request's blocks in the order of its prompt, those of all KV cache groups together.

        The null block stands for those that a sliding window has left behind.
        """
        groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
        if len(groups) == 1:
            return [block for block in groups[0] if not block.is_null]
        blocks = chain.from_iterable(zip_longest(*groups))
        return [block for block in blocks if block is not None and not block.is_null]

    def _missing_blocks(self, request: Any) -> int:
        """a_i: blocks that the request needs and that are not resident."""
        missing_tokens: int = request.num_tokens - self._resident_tokens(request)
        return -(-missing_tokens // self._tokens_per_block())

    def _tokens_per_block(self) -> int:
        """By how many tokens a long context grows per block of the pool, which all groups share."""
        managers = self.kv_cache_manager.coordinator.single_type_managers
        growing: list[int] = [
            m.block_size for m in managers if isinstance(m.kv_cache_spec, FullAttentionSpec)
        ] or [int(self.block_size)]
        tokens = math.lcm(*growing)
        return tokens // sum(tokens // size for size in growing)

    def _resident_tokens(self, request: Any) -> int:
        """Of the request's prefix; looking counts no hit and touches nothing.

        With full attention alone the resident part of a chain is a prefix (blocks are evicted tail
        first), so a binary search finds its end. Of a sliding window only the end is kept, and all
        KV cache groups must have their part: there vLLM's own search says what it will find.
        """
        hashes = request.block_hashes
        if not self._has_full_attention_alone:
            coordinator = self.kv_cache_manager.coordinator
            return int(coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)[1])
        pool = self.kv_cache_manager.block_pool
        low, high = 0, len(hashes)
        # Mostly nothing has changed since it was last looked up: two looks show that.
        known = self._resident_blocks.get(request.request_id, high + 1)
        if known <= high and (not known or pool.get_cached_block(hashes[known - 1], [0])):
            low = known
            if known < high and not pool.get_cached_block(hashes[known], [0]):
                high = known
        while low < high:
            middle = (low + high + 1) // 2
            if pool.get_cached_block(hashes[middle - 1], [0]):
                low = middle
            else:
                high = middle - 1
        self._resident_blocks[request.request_id] = low
        return low * int(pool.hash_block_size)


class CacheWiseAsyncScheduler(CacheWiseScheduler, AsyncScheduler):
    """The same over vLLM's AsyncScheduler."""
