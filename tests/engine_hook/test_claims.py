"""The book of claims by itself: numbers in, typed outcomes out."""

from __future__ import annotations

import math

import pytest
from cachewise_engine_hook.claims import (
    LOG_SIZE,
    MOST_CLAIMS,
    Ask,
    Asked,
    ClaimBook,
    ClaimLimits,
    Ended,
    seconds_asked,
)
from hypothesis import given
from hypothesis import strategies as st

USABLE, MOST, MOST_S = 90, 50, 600.0


def make_book(waits: dict[str, float] | None = None) -> ClaimBook:
    return ClaimBook(ClaimLimits(USABLE, MOST, MOST_S), lambda s, now: (waits or {}).get(s, 0.0))


def ask(
    book: ClaimBook, session: str, blocks: int, seconds: float = 60.0, protected: int = 0
) -> Ask:
    """What retention.py asks: cut to the room that is left, 16 tokens a block."""
    granted = min(blocks, book.room(protected))
    return Ask(session, seconds, blocks, granted, granted, granted * 16)


def grant(book: ClaimBook, session: str, blocks: int = 10, seconds: float = 60.0, **more) -> Asked:
    protected, active = more.get("protected", 0), more.get("active", 0)
    wish = ask(book, session, blocks, seconds, protected)
    return book.grant(wish, protected, active, more.get("now", 0.0))


def test_a_claim_within_all_limits_is_accepted() -> None:
    book = make_book()
    assert grant(book, "a", 10, 60.0, now=5.0) is Asked.ACCEPTED
    claim = book.get("a")
    assert claim is not None and (claim.blocks, claim.tokens, claim.ends_at) == (10, 160, 65.0)


def test_more_time_or_blocks_than_the_maxima_is_clipped_and_the_reason_says_to_what() -> None:
    book = make_book()
    assert grant(book, "a", 10, 601.0) is Asked.CLIPPED
    assert book.events[-1].reason == "600 s of 601"
    assert grant(book, "b", 45, 60.0, protected=10) is Asked.CLIPPED
    assert book.events[-1].reason == "40 blocks of 45" and book.get("b").blocks == 40


@pytest.mark.parametrize(
    ("blocks", "protected", "active", "reason"),
    [
        (10, 50, 0, "other claims protect 50 of 50 blocks"),
        (10, 20, 61, "20 protected + 10 asked + 61 active > 90 usable"),
        (0, 0, 0, "no block of the session is resident"),
    ],
)
def test_a_claim_that_cannot_be_kept_is_rejected(blocks, protected, active, reason) -> None:
    book = make_book()
    assert grant(book, "a", blocks, protected=protected, active=active) is Asked.REJECTED
    assert reason in book.events[-1].reason and "a" not in book


def test_the_last_block_that_fits_is_granted() -> None:
    assert grant(make_book(), "a", 10, protected=20, active=60) is Asked.ACCEPTED


def test_where_claims_are_off_every_one_is_rejected() -> None:
    book = ClaimBook(ClaimLimits(USABLE, 0, MOST_S), lambda s, now: 0.0)
    assert grant(book, "a") is Asked.REJECTED
    assert book.events[-1].reason == "claims are off"


def test_the_number_of_claims_and_the_log_are_bounded() -> None:
    book = ClaimBook(ClaimLimits(10**6, 10**6, MOST_S), lambda s, now: 0.0)
    outcomes = {grant(book, f"s{i}", 1, protected=i) for i in range(MOST_CLAIMS)}
    assert outcomes == {Asked.ACCEPTED} and grant(book, "one more", 1) is Asked.REJECTED
    assert len(book) == MOST_CLAIMS and len(book.events) == LOG_SIZE


def test_ends_that_are_never_reached_do_not_pile_up() -> None:
    book = make_book()
    for i in range(10_000):
        grant(book, "a", 1, now=i / 1000)
        book.came_back("a")
        assert book.admitted("a", 16, True, i / 1000)
    assert len(book._ends) < 100 and book.ended == {Ended.KEPT: 10_000}


def test_a_deferred_claim_is_an_event_and_no_claim() -> None:
    book = make_book()
    book.defer("a", 1.0)
    assert "a" not in book and book.asked == {Asked.DEFERRED: 1}
    assert (book.events[-1].outcome, book.events[-1].session) == ("deferred", "a")


def test_a_claim_ends_when_its_time_is_over_and_not_before() -> None:
    book = make_book()
    grant(book, "a", seconds=10.0)
    grant(book, "b", seconds=5.0)
    assert book.next_expired(4.9) is None
    assert book.next_expired(5.0).session == "b"
    book.end("b", Ended.EXPIRED, "", 5.0)
    assert book.next_expired(9.9) is None
    assert book.next_expired(20.0).session == "a"


def test_a_session_whose_request_waits_in_the_queue_does_not_lose_its_claim_by_that() -> None:
    book = make_book()
    grant(book, "a", seconds=10.0)
    book.came_back("a")
    assert book.next_expired(50.0) is None
    assert book.admitted("a", 160, True, 60.0)
    assert book.ended == {Ended.KEPT: 1}
    assert book.events[-1].age_s == 60.0


def test_a_session_that_came_back_and_was_aborted_loses_its_claim_in_time() -> None:
    book = make_book()
    grant(book, "a", seconds=10.0)
    book.came_back("a")
    assert book.next_expired(50.0) is None
    book.went_away("a")
    assert book.next_expired(50.0).session == "a"


@pytest.mark.parametrize(
    ("hit_tokens", "is_resident", "outcome"),
    [
        (160, True, Ended.KEPT),
        (1000, True, Ended.KEPT),
        (80, True, Ended.KEPT),
        (79, True, None),
        (0, True, None),
        (100, False, Ended.EVICTED_BEFORE_REUSE),
        (0, False, Ended.EVICTED_BEFORE_REUSE),
    ],
)
def test_what_a_returning_request_finds_decides(hit_tokens, is_resident, outcome) -> None:
    book = make_book()
    grant(book, "a", 10)
    assert book.admitted("a", hit_tokens, is_resident, 1.0) is (outcome is not None)
    assert list(book.ended) == ([outcome] if outcome else [])
    assert ("a" in book) is (outcome is None)


def test_a_prompt_that_went_another_way_is_told_from_one_that_hit_everything() -> None:
    book = make_book()
    grant(book, "a", 10)
    book.admitted("a", 96, True, 1.0)
    assert book.events[-1].reason == "96 of 160 tokens were found: the prompt differs from there on"
    grant(book, "a", 10)
    book.admitted("a", 170, True, 1.0)
    assert book.events[-1].reason == "160 of 160 tokens were found"


def test_the_session_that_is_away_longest_is_broken_first_then_the_newest_claim() -> None:
    book = make_book({"a": 5.0, "b": 50.0, "c": 5.0, "d": math.inf})
    for now, session in enumerate("abcd"):
        grant(book, session, 1, now=float(now))
    assert book.weakest_first(9.0) == ["d", "b", "c", "a"]


@pytest.mark.parametrize("value", [True, "60", None, -1, math.nan, math.inf, -math.inf, [1], {}])
def test_what_is_no_number_of_seconds_is_none(value) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        seconds_asked(value)


@pytest.mark.parametrize(("value", "seconds"), [(0, 0.0), (60, 60.0), (1.5, 1.5), (10**400, 1e9)])
def test_numbers_of_seconds_are_taken(value, seconds) -> None:
    assert seconds_asked(value) == seconds


sessions = st.sampled_from("abcdef")
operations = st.lists(
    st.one_of(
        st.tuples(st.just("leave"), sessions, st.integers(0, 60), st.floats(0, 1000)),
        st.tuples(st.just("grow"), st.integers(1, 60)),
        st.tuples(st.just("shrink"), st.integers(1, 60)),
        st.tuples(st.just("return"), sessions, st.floats(0, 1), st.booleans()),
        st.tuples(st.just("pass"), st.floats(0, 300)),
    ),
    max_size=60,
)


class Pool:
    """A pool of 100 blocks whose claims do not overlap: the book's caller in the plainest form."""

    def __init__(self, waits: dict[str, float]) -> None:
        self.book, self.active, self.now = make_book(waits), 0, 0.0
        self.granted = 0

    @property
    def protected(self) -> int:
        return sum(c.blocks for c in self.book.live())

    def leave(self, session: str, blocks: int, seconds: float) -> None:
        if session in self.book:
            self.book.end(session, Ended.RELEASED, "", self.now)
        before = self.protected
        outcome = self.book.grant(
            ask(self.book, session, blocks, seconds, before), before, self.active, self.now
        )
        is_granted = outcome in (Asked.ACCEPTED, Asked.CLIPPED)
        self.granted += is_granted
        assert is_granted is (session in self.book)
        if outcome is Asked.ACCEPTED:
            assert self.book.get(session).blocks == blocks and seconds <= MOST_S
        if outcome is Asked.REJECTED:
            asked = min(blocks, MOST - before)
            assert asked <= 0 or before + asked + self.active > USABLE

    def grow(self, blocks: int) -> None:
        self.active = min(self.active + blocks, USABLE)
        for session in self.book.weakest_first(self.now):
            if not self.book.is_over(self.protected, self.active):
                break
            self.book.end(session, Ended.BROKEN_UNDER_PRESSURE, "", self.now)

    def shrink(self, blocks: int) -> None:
        self.active = max(self.active - blocks, 0)

    def come_back(self, session: str, hit_share: float, is_admitted: bool) -> None:
        if session not in self.book:
            return
        self.book.came_back(session)
        if is_admitted:
            tokens = int(self.book.get(session).tokens * hit_share)
            self.book.admitted(session, tokens, True, self.now)
        self.book.went_away(session)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while (claim := self.book.next_expired(self.now)) is not None:
            self.book.end(claim.session, Ended.EXPIRED, "", self.now)
        assert all(c.ends_at > self.now for c in self.book.live())


@given(operations, st.dictionaries(sessions, st.floats(0, 1e6)))
def test_protected_and_active_blocks_never_outgrow_the_usable_ones(steps, waits) -> None:
    pool = Pool(waits)
    moves = {
        "leave": pool.leave,
        "grow": pool.grow,
        "shrink": pool.shrink,
        "return": pool.come_back,
        "pass": pool.pass_time,
    }
    for what, *arguments in steps:
        moves[what](*arguments)
        assert pool.protected + pool.active <= USABLE
        assert pool.protected <= MOST
        assert pool.granted == len(pool.book) + sum(pool.book.ended.values())
