"""Claims over vLLM's real block pool: blocks that are held, given back, and broken for."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from cachewise_engine_hook.admission import SLACK
from cachewise_engine_hook.check import replacement_problems
from cachewise_engine_hook.claimed_blocks import ClaimedFreeQueue
from cachewise_engine_hook.claims import Asked, Ended
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.retention import Retention
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from tests.engine_hook.test_free_queue import POOL, Engine, Waits, contents

SHARE = 0.5
BLOCK = 16


@dataclass
class Freed:
    """What claims read of a request."""

    sampling_params: SimpleNamespace
    num_computed_tokens: int


def freed(seconds: float | None, blocks: int) -> Freed:
    hint = {} if seconds is None else {"cachewise_retain_s": seconds}
    return Freed(SimpleNamespace(extra_args=hint), blocks * BLOCK)


class ClaimingEngine(Engine):
    """Sessions over a real block pool that may claim what they leave behind."""

    def __init__(self, reuse: Waits, **config: float) -> None:
        super().__init__(True, reuse)
        self.behind = self.pool.free_block_queue
        wait_s = reuse.time_to_reuse
        self.claims = Retention(
            Config(claim_share=SHARE, **config), self.behind, POOL, BLOCK, wait_s
        )
        self.pool.free_block_queue = self.claims.queue
        self.now = 0.0

    @property
    def queue(self) -> PredictiveFreeQueue:
        return self.behind

    def arrive(self, session: str, chain: list[bytes], partial: bool) -> list[int]:
        """A step in which a request comes and is admitted; the blocks that it was given."""
        self.claims.request_arrived(freed(None, 0), session, self.now)
        hits, known = len(self._hit(chain)), len(self.handed_out)
        if self.start(session, chain, partial):
            self.claims.request_admitted(session, hits * BLOCK, self.now)
        else:
            self.claims.request_finished(session)
        self.claims.end_step()
        return self.handed_out[known:]

    def leave(self, session: str, seconds: float | None, growth: int = 0) -> None:
        blocks = self.chains[session]
        self.claims.request_finished(session)
        request = freed(seconds, sum(b.block_hash is not None for b in blocks))
        self.queue.claim(session, blocks)
        self.claims.blocks_freed(request, session, blocks, lambda: growth, self.now)
        self.pool.free_blocks(reversed(self.chains.pop(session)))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.queue.begin_step(self.now)
        self.claims.begin_step(self.now)

    def resident(self, chain: list[bytes]) -> int:
        return len(self._hit(chain))


def turn(engine: ClaimingEngine, session: str, blocks: int, seconds: float | None = None) -> None:
    engine.arrive(session, contents(session, 0, blocks, 0), False)
    engine.leave(session, seconds)


def last_reason(engine: ClaimingEngine) -> str:
    return engine.claims.book.events[-1].reason


def test_claimed_blocks_outlast_any_number_of_other_sessions() -> None:
    for ranks in (False, True):
        engine = ClaimingEngine(Waits({"a": 1e6, "b": 1.0, "c": 2.0}, ranks))
        turn(engine, "a", 15, 60.0)
        for i in range(20):
            turn(engine, "bc"[i % 2], 12 + i % 3)
        assert engine.resident(contents("a", 0, 15, 0)) == 15
        assert engine.claims.queue.held == 15
        engine.arrive("a", contents("a", 0, 16, 0), False)
        assert engine.claims.book.ended == {Ended.KEPT: 1} and engine.claims.queue.held == 0


def test_once_its_time_is_over_a_claim_holds_nothing() -> None:
    engine = ClaimingEngine(Waits())
    turn(engine, "a", 15, 60.0)
    engine.pass_time(60.0)
    assert engine.claims.book.ended == {Ended.EXPIRED: 1}
    assert [b.block_id for b in engine.queue.get_all_free_blocks()][-15:] == list(range(15, 0, -1))
    for i in range(10):
        turn(engine, "bc"[i % 2], 20)
    assert engine.resident(contents("a", 0, 15, 0)) == 0


def test_the_session_that_is_away_longest_gives_way_to_a_request_that_needs_the_pool() -> None:
    engine = ClaimingEngine(Waits({"a": 5.0, "b": 500.0}))
    turn(engine, "a", 10, 60.0)
    turn(engine, "b", 10, 60.0)
    assert len(engine.arrive("c", contents("c", 0, 25, 0), False)) == 25
    assert "b" not in engine.claims and "a" in engine.claims
    assert last_reason(engine) == "running requests have taken all other blocks"
    assert engine.resident(contents("a", 0, 10, 0)) == 10
    assert engine.claims.book.ended == {Ended.BROKEN_UNDER_PRESSURE: 1}


def test_a_claim_is_cut_to_the_prefix_that_the_share_of_the_pool_allows() -> None:
    engine = ClaimingEngine(Waits())
    turn(engine, "a", 30, 60.0)
    assert engine.claims.book.asked == {Asked.CLIPPED: 1}
    assert last_reason(engine) == "20 blocks of 30"
    turn(engine, "b", 18)
    assert engine.resident(contents("a", 0, 30, 0)) == 21, "the tail beyond the claim went"


def test_requests_that_are_known_to_need_more_count_as_active() -> None:
    engine = ClaimingEngine(Waits())
    engine.arrive("a", contents("a", 0, 10, 0), False)
    usable = POOL - int(SLACK * POOL)
    engine.leave("a", 60.0, growth=usable - 10)
    assert engine.claims.book.asked == {Asked.REJECTED: 1}
    assert last_reason(engine) == (
        f"0 protected + 10 asked + {usable - 9} active > {usable} usable blocks"
    )


def test_a_prefix_that_two_sessions_claim_counts_once_and_stays_while_one_of_them_holds() -> None:
    engine = ClaimingEngine(Waits())
    for session, seconds in (("a", 30.0), ("b", 60.0)):
        engine.arrive(session, contents(session, 12, 16, 0), False)
        engine.leave(session, seconds)
    assert engine.claims.queue.protected == 20
    engine.pass_time(30.0)
    assert engine.claims.queue.protected == engine.claims.queue.held == 16
    turn(engine, "c", 23)
    assert engine.resident(contents("b", 12, 16, 0)) == 16
    assert engine.resident(contents("a", 12, 16, 0)) == 12


def test_another_prompt_of_the_session_neither_ends_nor_replaces_the_claim_of_the_policy() -> None:
    engine = ClaimingEngine(Waits(), claim_ttl_s=60.0)
    turn(engine, "a", 15)
    engine.arrive("a", contents("a", 3, 5, 1), False)
    engine.leave("a", None)
    assert engine.claims.book.get("a").blocks == 15
    turn(engine, "a", 16)
    assert engine.claims.book.ended == {Ended.KEPT: 1}
    assert engine.claims.book.get("a").blocks == 16


def test_a_wish_replaces_an_older_claim_and_nought_is_a_wish_for_none() -> None:
    engine = ClaimingEngine(Waits(), claim_ttl_s=60.0)
    turn(engine, "a", 15, 100.0)
    engine.arrive("a", contents("a", 3, 5, 1), False)
    engine.leave("a", 200.0)
    assert engine.claims.book.ended == {Ended.RELEASED: 1}
    assert engine.claims.book.get("a").blocks == 5 and engine.claims.queue.held == 5
    turn(engine, "b", 5, 0)
    assert "b" not in engine.claims


def test_blocks_that_lost_their_content_though_the_claim_held_are_told() -> None:
    engine = ClaimingEngine(Waits())
    turn(engine, "a", 10, 60.0)
    engine.pool.evict_blocks({b.block_id for b in list(engine.claims.queue._held.values())[:2]})
    engine.arrive("a", contents("a", 0, 10, 0), False)
    assert engine.claims.book.ended == {Ended.EVICTED_BEFORE_REUSE: 1}
    assert last_reason(engine) == "128 of 160 tokens were found"


def test_claims_that_end_at_once_are_given_back_over_several_steps() -> None:
    pool = 20_000
    blocks = [KVCacheBlock(i) for i in range(pool)]
    behind = PredictiveFreeQueue(blocks, pool, Waits())
    claims = Retention(Config(), behind, pool, BLOCK, lambda session, now: 0.0)
    for i in range(10):
        used = claims.queue.popleft_n(1_000)
        for block in used:
            block.ref_cnt = 1
            block.set_block_hash(b"%d" % block.block_id)
        claims.blocks_freed(freed(10.0, 1_000), f"s{i}", used, lambda: 0, 0.0)
        claims.queue.append_n(used[::-1])
    assert claims.queue.protected == claims.queue.held == 10_000
    for step, left in enumerate((8_000, 6_000, 4_000, 2_000, 0)):
        claims.begin_step(10.0 + step)
        assert claims.queue.held == left
    assert claims.queue.num_free_blocks == behind.num_free_blocks == pool


def test_iteration_shows_every_free_block_once_the_held_ones_last() -> None:
    engine = ClaimingEngine(Waits())
    turn(engine, "a", 10, 60.0)
    turn(engine, "b", 10)
    queue = engine.claims.queue
    order = queue.get_all_free_blocks()
    assert len(order) == len({b.block_id for b in order}) == queue.num_free_blocks == POOL - 1
    assert {b.block_id for b in order[-10:]} == set(queue._held)
    for i in (0, 20, 35):
        assert list(queue.iter_blocks_after(order[i])) == order[i + 1 :]


def test_it_has_every_method_of_vllms_queue() -> None:
    assert replacement_problems(FreeKVCacheBlockQueue, ClaimedFreeQueue) == []


steps = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.integers(0, 3),
        st.integers(3, 16),
        st.integers(0, 1),
        st.booleans(),
        st.sampled_from([None, None, 0, 5.0, 50.0, 5000.0]),
        st.integers(0, 10),
        st.integers(0, 20),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(steps, st.permutations("abcde"), st.booleans())
def test_whatever_happens_claims_hold_what_they_promise(operations, waits, ranks) -> None:
    engine = ClaimingEngine(Waits({s: float(i) for i, s in enumerate(waits)}, ranks))
    book, queue = engine.claims.book, engine.claims.queue
    usable = POOL - int(SLACK * POOL)
    for session, shared, length, version, partial, seconds, growth, passed in operations:
        engine.pass_time(passed)
        if session in engine.chains:
            engine.leave(session, seconds, growth)
        else:
            broken = book.ended[Ended.BROKEN_UNDER_PRESSURE]
            unclaimed = {b.block_id for b in engine.behind.get_all_free_blocks()}
            chain = contents(session, shared, length, version)
            used = {b.block_id for b in engine._hit(chain)}
            given_out = set(engine.arrive(session, chain, partial))
            if book.ended[Ended.BROKEN_UNDER_PRESSURE] == broken:
                assert given_out <= unclaimed
            elif given_out:
                left = unclaimed - given_out - used
                assert len(left) <= POOL - usable, "broken although other blocks were free"
        assert not queue.protected or queue.protected + queue.active <= usable
        assert queue.protected <= SHARE * POOL
        assert all(queue.is_resident(claim.session) for claim in book.live())
        free = queue.get_all_free_blocks()
        assert len({b.block_id for b in free}) == len(free) == queue.num_free_blocks
        assert all(b.ref_cnt == 0 for b in free)
        assert queue.protected == len(
            {b.block_id for blocks, _ in queue._claimed.values() for b in blocks}
        )
        granted = book.asked[Asked.ACCEPTED] + book.asked[Asked.CLIPPED]
        assert (
            granted
            == len(book) + sum(book.ended.values())
            == len(queue._claimed) + sum(book.ended.values())
        )
    assert Ended.EVICTED_BEFORE_REUSE not in book.ended


@settings(max_examples=100)
@given(steps)
def test_without_a_claim_the_very_blocks_of_the_queue_behind_are_handed_out(operations) -> None:
    plain, claiming = Engine(True, Waits()), ClaimingEngine(Waits())
    for session, shared, length, version, partial, _, _, _ in operations:
        chain = contents(session, shared, length, version)
        if session in plain.chains:
            plain.finish(session, session)
            claiming.leave(session, None)
        else:
            plain.start(session, chain, partial)
            claiming.arrive(session, chain, partial)
        assert plain.handed_out == claiming.handed_out
        in_order = [b.block_id for b in plain.queue.get_all_free_blocks()]
        assert in_order == [b.block_id for b in claiming.claims.queue.get_all_free_blocks()]
