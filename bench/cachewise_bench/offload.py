"""The CPU offload tier: vLLM's own OffloadingConnector, with copies that take virtual time.

vLLM's scheduler side decides what is stored, what the host's LRU drops and what a request loads
instead of computing it. This is the worker's side, which vLLM calls OffloadingConnectorWorker: it
copies nothing and says when a copy would have ended. As there, stores begin with the step after the
one that asked for them, loads with the step itself, and copies of one direction follow one another;
the two directions do not slow each other down, nor the step, whose computing they overlap. A step
waits only for stores from blocks that it is about to overwrite (jobs_to_flush).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput

from cachewise_bench.cost_model import Hardware


@dataclass(frozen=True)
class _Copy:
    job: int
    ends_at: float
    request: str | None
    """The request that waits for this load; None for a store."""


@dataclass
class _Direction:
    """One way over the link: first come, first served."""

    free_at: float = 0.0
    copies: deque[_Copy] = field(default_factory=deque)

    def add(self, job: int, seconds: float, request: str | None, now: float) -> None:
        self.free_at = max(self.free_at, now) + seconds
        self.copies.append(_Copy(job, self.free_at, request))

    def take_ended(self, now: float) -> list[_Copy]:
        ended = []
        while self.copies and self.copies[0].ends_at <= now:
            ended.append(self.copies.popleft())
        return ended


class HostLink:
    """The copies between the cards and host memory. Times are seconds of the virtual clock."""

    def __init__(self, hardware: Hardware) -> None:
        self.loaded_blocks = 0
        self._hardware = hardware
        self._loads, self._stores = _Direction(), _Direction()
        self._asked: list[tuple[int, int]] = []
        """Stores of the last step, not begun: job and blocks."""

    @property
    def next_end(self) -> float:
        """When the next copy ends; inf without any, 0 while stores have not begun."""
        firsts = [d.copies[0].ends_at for d in (self._loads, self._stores) if d.copies]
        return 0.0 if self._asked else min(firsts, default=math.inf)

    def begin_step(self, work: Any, now: float) -> float:
        """Begins the copies of a step (its OffloadingConnectorMetadata); returns when the step can
        compute."""
        flushed = work.jobs_to_flush or set()
        stores = {job: len(s.src_spec.block_ids) for job, s in work.store_jobs.items()}
        self._asked += [(job, blocks) for job, blocks in stores.items() if job in flushed]
        for job, blocks in self._asked:
            self._stores.add(job, self._hardware.transfer_seconds(blocks), None, now)
        self._asked = [(job, blocks) for job, blocks in stores.items() if job not in flushed]
        ready_at = max((c.ends_at for c in self._stores.copies if c.job in flushed), default=now)
        for job, load in work.load_jobs.items():
            blocks = len(load.dst_spec.block_ids)
            self.loaded_blocks += blocks
            seconds = self._hardware.transfer_seconds(blocks)
            self._loads.add(job, seconds, load.req_id, ready_at)
        return max(now, ready_at)

    def end_step(self, now: float) -> KVConnectorOutput:
        """What the worker reports after a step: the copies that have ended."""
        done, loaded = OffloadingWorkerMetadata(), set()
        for copy in (*self._stores.take_ended(now), *self._loads.take_ended(now)):
            done.mark_completed(copy.job)
            if copy.request is not None:
                loaded.add(copy.request)
        return KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=done)
