"""The replay's shortcuts change nothing: vLLM's own answers, and whole replays without them."""

from __future__ import annotations

from typing import Any

import pytest
from cachewise_bench import shortcuts
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.replay import Outcome, Replay

from .policies.small import CHUNK, TRAINING, hardware, prepared, small_sessions

COUNT = 12


@pytest.mark.parametrize(
    "name",
    ["vllm", "cachewise-c20", "continuum", "thunder", "aimd", "belady", "ours", "vllm+offload"],
)
def test_a_replay_is_the_same_without_shortcuts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_them = _decisions(_replay(name))
    monkeypatch.setattr(shortcuts, "install", lambda scheduler: None)
    assert _decisions(_replay(name)) == with_them


@pytest.mark.parametrize("name", ["vllm", "vllm-prefix", "continuum", "ours"])
def test_each_look_up_finds_what_vllm_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, repeated = 0, 0
    install = shortcuts.install

    def compared(scheduler: Any) -> None:
        kv_cache = scheduler.kv_cache_manager
        (manager,) = kv_cache.coordinator.single_type_managers
        vllms, count = (
            kv_cache.coordinator.find_longest_cache_hit,
            manager._get_num_evictable_blocks,
        )
        install(scheduler)
        ours, counted = (
            kv_cache.coordinator.find_longest_cache_hit,
            manager._get_num_evictable_blocks,
        )
        last: Any = None

        def find(hashes: list[bytes], most: int) -> Any:
            nonlocal looked_up, repeated, last
            looked_up, repeated, last = looked_up + 1, repeated + (hashes is last), hashes
            found = ours(hashes, most)
            (mine,), *rest = found
            (theirs,), *others = vllms(hashes, most)
            assert rest == others
            assert all(a is b for a, b in zip(mine, theirs, strict=True))
            return found

        def evictable(blocks: Any) -> int:
            assert counted(blocks) == count(list(blocks))
            return int(count(list(blocks)))

        kv_cache.coordinator.find_longest_cache_hit = find
        manager._get_num_evictable_blocks = evictable

    monkeypatch.setattr(shortcuts, "install", compared)
    _replay(name)
    assert looked_up > COUNT and (repeated > 20 or name == "ours")


def _replay(name: str) -> Outcome:
    name, _, tier = name.partition("+")
    sessions = small_sessions(COUNT)
    if not tier:
        return prepared(name, sessions).run()
    return Replay(sessions, POLICIES[name](TRAINING), hardware(), CHUNK, offload_gib=0.5).run()


def _decisions(outcome: Outcome) -> dict[str, object]:
    return {**vars(outcome), "scheduler_cpu_s": None}
