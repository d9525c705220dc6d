"""Blocks that come back late, twice or without content: the free queue stays what it should be."""

from __future__ import annotations

from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from .test_free_queue import Engine, Waits, contents


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


@given(st.data())
def test_tail_first_holds_for_blocks_that_a_connector_gives_back_late(data: st.DataObject) -> None:
    """A connector touches blocks, in use or not, and frees each lot when its copy has ended."""
    engine = Engine(True, Waits({"a": 5.0, "b": 7.0}))
    pool, chains, lots = engine.pool, {}, []
    for session in "ab":
        assert engine.start(session, contents(session, 2, 10, 0), partial=True)
        chains[session] = [b for b in engine.chains[session] if b.block_hash is not None]
    for _ in range(data.draw(st.integers(1, 8))):
        event = data.draw(st.sampled_from(["finish a", "finish b", "hold", "give back"]))
        if event == "hold":
            ids = st.sampled_from([b.block_id for b in chains["a"] + chains["b"]])
            lot = [pool.blocks[i] for i in data.draw(st.lists(ids, unique=True))]
            pool.touch(lot)
            lots.append(lot)
        elif event == "give back" and lots:
            pool.free_blocks(lots.pop(data.draw(st.integers(0, len(lots) - 1))))
        elif (session := event[-1]) in engine.chains:
            engine.finish(session, session)
    for session in list(engine.chains):
        engine.finish(session, session)
    for lot in lots:
        pool.free_blocks(lot)
    order = free_ids(pool)
    for chain in chains.values():
        places = [order.index(block.block_id) for block in chain]
        assert places == sorted(places, reverse=True)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 4), max_size=6)), max_size=6))
def test_a_block_that_is_free_already_is_not_put_in_twice(
    calls: list[tuple[bool, list[int]]],
) -> None:
    queue = PredictiveFreeQueue([], 5, Waits({"*0": 1.0}))
    blocks = [KVCacheBlock(i) for i in range(5)]
    for is_cached, ids in calls:
        put = queue.append_n if is_cached else queue.prepend_n
        put([blocks[i] for i in ids])
        listed = [block.block_id for block in queue.get_all_free_blocks()]
        assert len(set(listed)) == len(listed) == queue.num_free_blocks
    given_out = queue.popleft_n(queue.num_free_blocks)
    assert {block.block_id for block in given_out} == {i for _, ids in calls for i in ids}
    assert queue.get_all_free_blocks() == []


def test_after_a_reset_no_block_is_anybodys() -> None:
    reuse = Waits({"a": 1.0, "b": 500.0})
    engine = Engine(True, reuse)
    for session in "ab":
        engine.start(session, contents(session, 0, 5, 0), partial=False)
        engine.finish(session, session)
    assert engine.pool.reset_prefix_cache()
    engine.queue.forget_contents()
    assert engine.queue.block_counts()["cached"] == 0
    engine.start("b", contents("b", 0, 5, 1), partial=False)
    engine.finish("b", "b")
    kept = {block.block_id for block in engine.pool.blocks if block.block_hash is not None}
    taken = engine.queue.popleft_n(engine.queue.num_free_blocks - 5)
    assert not kept & {block.block_id for block in taken}
