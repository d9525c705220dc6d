"""The free queue against vLLM's own (without forecasts) and against brute force (with them)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from cachewise_engine_hook.check import replacement_problems
from cachewise_engine_hook.free_queue import MAX_OWNERS, PredictiveFreeQueue
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

POOL = 40


@dataclass
class Waits:
    """Remaining waits by session, fixed; a session that is not in it is away for ever."""

    waits: dict[str, float] = field(default_factory=dict)
    ranks: bool = True

    @property
    def can_rank(self) -> bool:
        return self.ranks and bool(self.waits)

    def time_to_reuse(self, key: str, now: float) -> float:
        return self.waits.get(key, math.inf)

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        return self.time_to_reuse(key, now)


class Engine:
    """Sessions over a real BlockPool: chains grow, share prefixes, come and go.

    A chain is a list of (block, content); content names what the block holds, so that a block that
    was handed out for something else is told from a resident one.
    """

    def __init__(self, ours: bool, reuse: Waits) -> None:
        self.pool = BlockPool(POOL, enable_caching=True, hash_block_size=16)
        if ours:
            free = self.pool.free_block_queue.get_all_free_blocks()
            self.pool.free_block_queue = PredictiveFreeQueue(free, POOL, reuse)
        self.ours = ours
        self.chains: dict[str, list[KVCacheBlock]] = {}
        self.evicted: list[int] = []
        self.handed_out: list[int] = []

    @property
    def queue(self) -> PredictiveFreeQueue:
        return self.pool.free_block_queue

    def _hit(self, contents: list[bytes]) -> list[KVCacheBlock]:
        found = []
        for content in contents:
            if not (blocks := self.pool.get_cached_block(content, [0])):
                break
            found.append(blocks[0])
        return found

    def start(self, request: str, contents: list[bytes], partial: bool) -> bool:
        """A request with this chain takes its hits and new blocks; False where it does not fit."""
        hits = self._hit(contents)
        new = len(contents) - len(hits) + partial
        free_hits = sum(b.ref_cnt == 0 for b in hits)
        if request in self.chains or new > self.pool.get_num_free_blocks() - free_hits:
            return False
        self.pool.touch(hits)
        blocks = self.pool.get_new_blocks(new) if new else []
        self.handed_out += [b.block_id for b in blocks]
        for block, content in zip(blocks, contents[len(hits) :], strict=False):
            self.pool._insert_block_hash(content + (0).to_bytes(4, "big"), block, num_tokens=16)
        self.chains[request] = hits + blocks
        return True

    def finish(self, request: str, owner: str) -> None:
        blocks = self.chains.pop(request)
        if self.ours:
            self.queue.claim(owner, blocks)
        self.pool.free_blocks(reversed(blocks))


def contents(session: str, shared: int, length: int, version: int) -> list[bytes]:
    """A chain: `shared` blocks of the system prompt, then the session's own."""
    own = [b"%s.%d.%d.%d" % (session.encode(), shared, version, i) for i in range(length - shared)]
    return [b"system.%d" % i for i in range(shared)] + own


session_names = st.sampled_from("abcde")
operations = st.lists(
    st.tuples(
        session_names, st.integers(0, 3), st.integers(3, 12), st.integers(0, 1), st.booleans()
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(operations)
def test_without_forecasts_the_very_blocks_of_vllms_own_queue_are_handed_out(ops) -> None:
    ours, theirs = Engine(True, Waits()), Engine(False, Waits())
    for session, shared, length, version, partial in ops:
        for engine in (ours, theirs):
            chain = contents(session, shared, length, version)
            if session in engine.chains:
                engine.finish(session, session)
            else:
                engine.start(session, chain, partial)
        assert ours.handed_out == theirs.handed_out
        in_order = [b.block_id for b in ours.queue.get_all_free_blocks()]
        assert in_order == [b.block_id for b in theirs.queue.get_all_free_blocks()]
        assert ours.queue.num_free_blocks == len(in_order)


class BruteForce:
    """The rule in the plainest form: owners per block, age per block, the order by sorting."""

    def __init__(self, waits: Waits) -> None:
        self.waits, self.owners, self.freed_at, self.clock = waits, {}, {}, 0

    def use(self, blocks: list[KVCacheBlock], owner: str) -> None:
        for block in blocks:
            self.owners.setdefault(block.block_id, set()).add(owner)

    def free(self, blocks: list[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.clock += 1
                self.freed_at[block.block_id] = self.clock
            if block.block_hash is None:
                self.owners.pop(block.block_id, None)

    def key(self, block: KVCacheBlock) -> tuple[float, int, int]:
        owners = self.owners[block.block_id]
        soonest = min(self.waits.time_to_reuse(o, 0.0) for o in owners)
        return (-soonest, len(owners), self.freed_at[block.block_id])


@settings(max_examples=400, deadline=None)
@given(operations, st.lists(st.floats(0, 1e6), min_size=5, max_size=5, unique=True))
def test_with_forecasts_the_order_is_the_brute_force_one(ops, waits) -> None:
    reuse = Waits(dict(zip("abcde", waits, strict=True)))
    engine, model = Engine(True, reuse), BruteForce(reuse)
    for session, shared, length, version, partial in ops:
        if session in engine.chains:
            blocks = list(engine.chains[session])
            model.use(blocks, session)
            engine.finish(session, session)
            model.free(list(reversed(blocks)))
        else:
            known = len(engine.handed_out)
            engine.start(session, contents(session, shared, length, version), partial)
            for block_id in engine.handed_out[known:]:
                model.owners.pop(block_id, None)
        engine.queue.begin_step(0.0)
        in_order = engine.queue.get_all_free_blocks()
        assert len({b.block_id for b in in_order}) == len(in_order) == engine.queue.num_free_blocks
        without = [b for b in in_order if b.block_hash is None]
        assert in_order[: len(without)] == without
        expected = sorted(in_order[len(without) :], key=model.key)
        ranked = in_order[len(without) :]
        assert [model.key(b) for b in ranked] == [model.key(b) for b in expected]


@settings(max_examples=400, deadline=None)
@given(operations, st.randoms(use_true_random=False))
def test_an_ancestor_never_goes_before_its_descendant(ops, rng: random.Random) -> None:
    reuse = Waits({s: rng.random() for s in "abcde"})
    engine = Engine(True, reuse)
    ancestors: dict[bytes, bytes] = {}
    for session, shared, length, version, partial in ops:
        reuse.waits[session] = rng.choice([rng.random() * 100, 5.0])
        reuse.ranks = rng.random() < 0.8
        engine.queue.begin_step(0.0)
        engine.queue.ranks_changed()
        if session in engine.chains:
            engine.finish(session, session)
        else:
            chain = contents(session, shared, length, version)
            ancestors |= {
                b + (0).to_bytes(4, "big"): a + (0).to_bytes(4, "big")
                for a, b in zip(chain, chain[1:], strict=False)
            }
            engine.start(session, chain, partial)
        cached = {b.block_hash for b in engine.pool.blocks if b.block_hash is not None}
        for block_hash in cached:
            assert block_hash not in ancestors or ancestors[block_hash] in cached


def test_the_pool_of_three_blocks_gives_its_last_block_first() -> None:
    """Case 1 of the public faults: chain 1→2→3, one block is wanted, again after a new rank."""
    reuse = Waits({"a": 1.0})
    queue = PredictiveFreeQueue([], 4, reuse)
    blocks = [KVCacheBlock(i) for i in range(4)]
    for block in blocks[1:]:
        block.set_block_hash(b"%d" % block.block_id)
    queue.claim("a", blocks[1:])
    queue.append_n([blocks[3], blocks[2], blocks[1]])
    assert queue.popleft() is blocks[3]
    queue.begin_step(1.0)
    assert queue.popleft() is blocks[2]


def test_a_block_of_very_many_sessions_goes_last() -> None:
    reuse = Waits({f"s{i}": 1e6 for i in range(50)} | {"one": 0.001, "*0": 0.0})
    queue = PredictiveFreeQueue([], 2, reuse)
    everybodys, ones = KVCacheBlock(0), KVCacheBlock(1)
    for block in (everybodys, ones):
        block.set_block_hash(b"x%d" % block.block_id)
    for i in range(MAX_OWNERS + 1):
        queue.claim(f"s{i}", [everybodys])
    queue.claim("one", [ones])
    queue.append_n([everybodys])
    queue.append_n([ones])
    assert queue.popleft_n(2) == [ones, everybodys]


def test_superseded_blocks_go_first_and_a_prefix_that_is_used_again_stays() -> None:
    engine = Engine(True, Waits({"a": 1.0, "b": 1000.0}))
    for name, length, version in (("a", 10, 0), ("b", 10, 0), ("a", 6, 1)):
        assert engine.start(name, contents(name, 0, length, version), partial=False)
        if version:
            engine.queue.supersede(name)
        engine.finish(name, name)
    engine.queue.begin_step(1.0)
    old = {b.block_id for b in engine.queue.get_all_free_blocks() if b.block_hash is not None}
    assert engine.start("c", contents("c", 0, POOL - 1 - 26 + 10, 0), partial=False)
    left = {b.block_id for b in engine.queue.get_all_free_blocks()}
    assert len(old - left) == 10, "just the ten of a's first prompt"
    assert len(engine._hit(contents("a", 0, 6, 1))) == 6
    assert len(engine._hit(contents("b", 0, 10, 0))) == 10
    assert engine._hit(contents("a", 0, 10, 0)) == []


def test_blocks_without_content_go_first_the_last_freed_of_them_first() -> None:
    reuse = Waits({"a": 1.0})
    queue = PredictiveFreeQueue([], 3, reuse)
    cached, old, young = (KVCacheBlock(i) for i in range(3))
    cached.set_block_hash(b"x")
    queue.claim("a", [cached])
    queue.append(cached)
    queue.prepend_n([old])
    queue.prepend_n([young])
    assert queue.popleft_n(3) == [young, old, cached]


def test_sessions_whose_blocks_had_no_content_leave_nothing_behind() -> None:
    queue = PredictiveFreeQueue([], 1, Waits())
    block = KVCacheBlock(0)
    for i in range(100):
        queue.claim(f"s{i}", [block])
        queue.prepend_n([block])
        assert queue.popleft() is block
    assert not queue._groups.by_owners


def test_iteration_goes_on_after_the_cursor_as_long_as_the_order_is_that_of_stock_vllm() -> None:
    reuse = Waits({"a": 1.0, "b": 9.0})
    queue = PredictiveFreeQueue([], 6, reuse)
    blocks = [KVCacheBlock(i) for i in range(6)]
    for block in blocks:
        block.set_block_hash(b"x%d" % block.block_id)
    for owner, own in (("a", blocks[:3]), ("b", blocks[3:])):
        queue.claim(owner, reversed(own))
        queue.append_n(own)
    order = [blocks[i] for i in (3, 4, 5, 0, 1, 2)]
    assert queue.get_all_free_blocks() == order
    assert list(queue.iter_blocks_after(blocks[5])) == order
    reuse.ranks = False
    assert list(queue.iter_blocks_after(blocks[1])) == blocks[2:]


def test_an_empty_queue_raises_as_vllms_does() -> None:
    with pytest.raises(ValueError, match="No free blocks"):
        PredictiveFreeQueue([], 1, Waits()).popleft()
    with pytest.raises(RuntimeError, match="invalid block"):
        PredictiveFreeQueue([], 1, Waits()).remove(KVCacheBlock(0))


def test_it_has_every_method_of_vllms_queue() -> None:
    assert replacement_problems(FreeKVCacheBlockQueue, PredictiveFreeQueue) == []
    theirs = {n for n in vars(FreeKVCacheBlockQueue) if not n.startswith("_")}
    assert theirs <= {n for n in vars(PredictiveFreeQueue) if not n.startswith("_")}
