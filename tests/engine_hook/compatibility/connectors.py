"""KV connectors over the checked worker: a remote store of our own, and vLLM's CPU offloading.

Each has a scheduler's side, a vLLM connector class, and a worker's side, which is called with what
the scheduler's side asks for. Copies end a few steps later, and only then read and write: a block
that is given away too early shows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.kv_cache_interface import KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from ..vllm_scheduler import BLOCK
from .worker import Content

Slots = dict[tuple[int, int], Content]
Copy = tuple[str, list[tuple[bytes, int]]]
"""A request, and its blocks with the hashes of their contents."""


# ---- a remote store: blocks are kept for it after a request has finished -------------------------


@dataclass
class RemoteWork(KVConnectorMetadata):
    saves: list[Copy] = field(default_factory=list)
    loads: list[Copy] = field(default_factory=list)


class RemoteStore(KVConnectorBase_V1, SupportsHMA):
    """Saves a finished request's blocks, which are its own until then; loads without waiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored: set[bytes] = set()
        self._saving: dict[str, list[bytes]] = {}
        self._local_blocks: dict[str, int] = {}
        self._work = RemoteWork()

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        here = there = num_computed // BLOCK
        while there < (request.num_tokens - 1) // BLOCK:
            if request.block_hashes[there] not in self._stored:
                break
            there += 1
        self._local_blocks[request.request_id] = here
        return (there - here) * BLOCK, there > here

    def update_state_after_alloc(self, request: Any, blocks: Any, external_tokens: int) -> None:
        first = self._local_blocks.pop(request.request_id, 0)
        places = range(first, first + external_tokens // BLOCK)
        if places:
            (ids,) = blocks.get_block_ids()
            wanted = [(request.block_hashes[i], ids[i]) for i in places]
            self._work.loads.append((request.request_id, wanted))

    def build_connector_meta(self, plan: Any) -> RemoteWork:
        work, self._work = self._work, RemoteWork()
        return work

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        full = request.num_computed_tokens // BLOCK
        if request.status == RequestStatus.FINISHED_ABORTED or not full:
            return False, None
        kept = list(zip(request.block_hashes[:full], block_ids, strict=False))
        self._saving[request.request_id] = [block_hash for block_hash, _ in kept]
        self._work.saves.append((request.request_id, kept))
        return True, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.request_finished(request, block_ids[0])

    def update_connector_output(self, output: KVConnectorOutput) -> None:
        for request_id in output.finished_sending or ():
            self._stored.update(self._saving.pop(request_id))

    # The worker's side is RemoteLink.
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


KVConnectorFactory.register_connector("RemoteStoreOfTests", __name__, "RemoteStore")


class RemoteLink:
    """The remote store's contents, and the copies under way."""

    def __init__(self, delay_steps: int = 3) -> None:
        self.loaded_blocks = 0
        self._contents: dict[bytes, list[Content | None]] = {}
        self._delay, self._step = delay_steps, 0
        self._under_way: deque[tuple[int, RemoteWork]] = deque()

    def __call__(self, work: RemoteWork, slots: Slots) -> KVConnectorOutput:
        self._step += 1
        self._under_way.append((self._step + self._delay, work))
        sent, received = set(), set()
        while self._under_way[0][0] <= self._step:
            _, done = self._under_way.popleft()
            for request_id, blocks in done.saves:
                sent.add(request_id)
                for block_hash, block in blocks:
                    self._contents[block_hash] = [slots.get((block, i)) for i in range(BLOCK)]
            for request_id, blocks in done.loads:
                received.add(request_id)
                self.loaded_blocks += len(blocks)
                for block_hash, block in blocks:
                    for i, content in enumerate(self._contents[block_hash]):
                        slots[block, i] = content
        return KVConnectorOutput(finished_sending=sent, finished_recving=received)


def remote_store() -> dict[str, Any]:
    """Options of a scheduler with it."""
    return {"kv_transfer_config": KVTransferConfig("RemoteStoreOfTests", kv_role="kv_both")}


# ---- vLLM's SimpleCPUOffloadConnector ------------------------------------------------------------


class HostCopies:
    """The worker's side of SimpleCPUOffloadConnector: host memory, and the copies under way."""

    def __init__(self, block_size: int = BLOCK, delay_steps: int = 3) -> None:
        self.loaded_blocks = self.stored_blocks = 0
        self._size, self._delay, self._step = block_size, delay_steps, 0
        self._host: dict[tuple[int, int], Content | None] = {}
        self._under_way: deque[tuple[int, Any]] = deque()

    def __call__(self, work: Any, slots: Slots) -> KVConnectorOutput:
        self._step += 1
        self._under_way.append((self._step + self._delay, work))
        loaded: set[str] = set()
        stored: dict[int, int] = {}
        while self._under_way[0][0] <= self._step:
            _, done = self._under_way.popleft()
            self._copy(done, slots)
            if done.store_event >= 0:
                stored[done.store_event] = 1
            if done.load_event >= 0:
                loaded.update(done.load_event_to_reqs[done.load_event])
        return KVConnectorOutput(
            finished_recving=loaded,
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(stored) if stored else None,
        )

    def _copy(self, done: Any, slots: Slots) -> None:
        self.stored_blocks += len(done.store_gpu_blocks)
        self.loaded_blocks += len(done.load_gpu_blocks)
        for block, kept in zip(done.store_gpu_blocks, done.store_cpu_blocks, strict=True):
            for i in range(self._size):
                self._host[kept, i] = slots.get((block, i))
        for block, kept in zip(done.load_gpu_blocks, done.load_cpu_blocks, strict=True):
            for i in range(self._size):
                if (content := self._host[kept, i]) is not None:
                    slots[block, i] = content


def cpu_offload(num_blocks: int, *, is_lazy: bool, times_larger: int = 4) -> dict[str, Any]:
    """Options of a scheduler whose host memory holds so many times its pool."""
    where = KVCacheTensor(size=num_blocks, layers=["layer"], layer_stride=1, block_stride=1)
    how = {"cpu_bytes_to_use": times_larger * num_blocks, "lazy_offload": is_lazy}
    return {
        "num_blocks": num_blocks,
        "tensors": [where],
        "kv_transfer_config": KVTransferConfig(
            "SimpleCPUOffloadConnector", kv_role="kv_both", kv_connector_extra_config=how
        ),
    }
