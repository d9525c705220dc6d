"""The guard, at block granularity, over vLLM's block pool: against its LRU, with hostile waits."""

from __future__ import annotations

from itertools import count

from cachewise_engine_hook.guard import FACTOR, Guard, ShadowLru
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_hook.test_free_queue import POOL, Engine, Waits, contents

USABLE = POOL - 1  # one is vLLM's null block

growth = st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(1, 4)), max_size=120)


def lengths(growth: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """(session, blocks known before, blocks now) of each request; nobody outgrows the pool."""
    known: dict[str, int] = {}
    requests = []
    for session, more in growth:
        before = known.get(session, 0)
        known[session] = min(before + more, 20)
        requests.append((session, before, known[session]))
    return requests


def serve(engine: Engine, session: str, blocks: int) -> int:
    """One request from start to end; returns its hits."""
    chain = contents(session, 0, blocks, 0)
    hits = len(engine._hit(chain))
    assert engine.start(session, chain, partial=False)
    engine.finish(session, session)
    return hits


@settings(max_examples=300, deadline=None)
@given(growth)
def test_the_shadow_knows_what_vllms_lru_holds(growth: list[tuple[str, int]]) -> None:
    engine, shadow = Engine(False, Waits()), ShadowLru(USABLE)
    for session, _, blocks in lengths(growth):
        resident = shadow.resident(session)
        assert serve(engine, session, blocks) == resident
        shadow.serve(session, blocks)


class Hostile(Waits):
    """Ranks the sessions that return next last: what is needed soonest goes first."""

    def __init__(self, guard: Guard | None) -> None:
        super().__init__()
        self.guard = guard

    @property
    def can_rank(self) -> bool:
        return self.guard is None or not self.guard.follows_lru

    def expect(self, coming: list[str]) -> None:
        self.waits = {}
        for place, session in enumerate(coming):
            self.waits.setdefault(session, 1e6 - place)

    def time_to_reuse(self, key: str, now: float) -> float:
        return self.waits.get(key, 0.0)

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        return self.time_to_reuse(key, now)


def missed(requests: list[tuple[str, int, int]], ours: bool, guard: Guard | None = None) -> int:
    """Blocks that were computed before and again, with hostile waits or in stock order."""
    reuse = Hostile(guard)
    engine, again = Engine(ours, reuse), 0
    for i, (session, known, blocks) in enumerate(requests):
        if ours:
            reuse.expect([s for s, _, _ in requests[i + 1 : i + 30]])
            engine.queue.begin_step(float(i))
            engine.queue.ranks_changed()
        hits = serve(engine, session, blocks)
        again += known - hits
        if guard is not None:
            guard.request_admitted(session, known, hits, blocks)
    return again


@settings(max_examples=200, deadline=None)
@given(growth)
def test_with_hostile_forecasts_the_bound_holds(growth: list[tuple[str, int]]) -> None:
    requests = lengths(growth)
    lru = missed(requests, ours=False)
    assert missed(requests, ours=True, guard=Guard(USABLE)) <= FACTOR * lru + 4 * USABLE


def two_that_return_among_many_that_do_not(rounds: int) -> list[tuple[str, int, int]]:
    """LRU keeps a and b; hostile forecasts throw them away each time."""
    strangers = (f"stranger{i}" for i in count())
    requests: list[tuple[str, int, int]] = []
    for i in range(rounds):
        requests += [("a", 10 if i else 0, 10), (next(strangers), 0, 6)]
        requests += [("b", 10 if i else 0, 10), (next(strangers), 0, 6)]
    return requests


def test_without_the_guard_hostile_forecasts_lose_without_bound_and_with_it_they_do_not() -> None:
    requests = two_that_return_among_many_that_do_not(100)
    guard = Guard(USABLE)
    assert missed(requests, ours=False) == 0
    assert missed(requests, ours=True) > 10 * USABLE
    assert missed(requests, ours=True, guard=guard) <= 4 * USABLE
    assert guard.follows_lru and guard.switches == 1


def test_forecasts_get_their_say_again_when_the_loss_is_made_good() -> None:
    guard = Guard(100)
    guard.request_admitted("a", known=0, hit=0, blocks=60)
    guard.request_admitted("b", known=101, hit=0, blocks=101)  # LRU misses them too: no loss
    assert not guard.follows_lru
    for _ in range(4):  # hits of the shadow that we missed
        guard.request_admitted("b", known=100, hit=0, blocks=100)
    assert guard.follows_lru and guard.switches == 1
    for i in range(7):  # misses of the shadow that we hit
        guard.request_admitted(f"c{i}", known=50, hit=50, blocks=50)
    assert not guard.follows_lru


def test_a_forgotten_session_leaves_the_shadow() -> None:
    shadow = ShadowLru(10)
    shadow.serve("a", 6)
    shadow.forget("a")
    shadow.serve("b", 10)
    assert (shadow.resident("a"), shadow.resident("b")) == (0, 10)
