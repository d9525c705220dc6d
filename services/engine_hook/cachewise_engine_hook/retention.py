"""Retention: claims in the life of a session's requests.

    request_arrived   a request that asks for a claim is told to wait; its session is not away
    blocks_freed      the claim is decided, just before the request's blocks are freed
    request_admitted  the session's next request found its blocks: the claim has been kept
    begin_step        claims whose time is over end
    end_step          where requests have grown too much, claims are broken

A claim comes from the request's `vllm_xargs`, key `cachewise_retain_s` (a number of seconds; 0 asks
for none), or else from the setting claim_ttl_s, which gives every turn one. A request's own wish
replaces the session's older claim; one by the setting does not replace a larger one, since agents
send small requests of another prompt (a title, a summary) under their session's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cachewise_engine_hook.admission import SLACK
from cachewise_engine_hook.claimed_blocks import ClaimableBlock, ClaimedFreeQueue
from cachewise_engine_hook.claims import Ask, Claim, ClaimBook, ClaimLimits, Ended, seconds_asked
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.room import Room

RETAIN_KEY = "cachewise_retain_s"
_BLOCKS_PER_STEP = 1_024
"""Of expired claims, given back in one step: so that no step is long. The rest follows."""


class RetainedRequest(Protocol):
    """What claims use of vLLM's Request."""

    sampling_params: Any
    num_computed_tokens: int


class Retention:
    """Makes, keeps and ends the claims of one engine."""

    def __init__(
        self,
        config: Config,
        free_queue: PredictiveFreeQueue,
        pool_blocks: int,
        block_size: int,
        wait_s: Callable[[str, float], float],
    ) -> None:
        """block_size: tokens per block. wait_s: a session's expected remaining wait."""
        self.queue = ClaimedFreeQueue(free_queue, pool_blocks)
        self.queue.make_room = self._make_room
        usable = pool_blocks - int(SLACK * pool_blocks)
        most_blocks = int(config.claim_share * pool_blocks)
        self.book = ClaimBook(ClaimLimits(usable, most_blocks, config.claim_max_s), wait_s)
        self.malformed = 0
        """Requests whose wish is not a number of seconds."""
        self._ttl_s = config.claim_ttl_s if most_blocks else 0.0
        self._block_size = block_size
        self._now = 0.0

    def request_arrived(self, request: RetainedRequest, session: str, now: float) -> None:
        self.book.came_back(session)
        try:
            wish = _seconds_wished(request)
        except ValueError:
            self.malformed += 1
            return
        if wish:
            self.book.defer(session, now)

    def request_admitted(self, session: str, hit_tokens: int, now: float) -> None:
        """hit_tokens: those of its prompt that were in the pool."""
        if session not in self.book:
            return
        if self.book.admitted(session, hit_tokens, self.queue.is_resident(session), now):
            self.queue.release(session)

    def blocks_freed(
        self,
        request: RetainedRequest,
        session: str,
        blocks: Iterable[ClaimableBlock],
        growth: Callable[[], int],
        now: float,
    ) -> None:
        """blocks: of a request that has finished, in the order of its prompt, still in use.

        growth: blocks that the running requests are known to need soon.
        """
        seconds, is_own_wish = self._seconds(request)
        if not seconds:
            return
        freed = list(blocks)
        resident = [block for block in freed if block.block_hash is not None]
        if not resident and not is_own_wish:
            return
        if (older := self.book.get(session)) is not None:
            if not resident or (not is_own_wish and len(resident) < older.blocks):
                return
            self.end(session, Ended.RELEASED, "a newer claim is asked for", now)
        queue = self.queue
        claimed, fresh = queue.claimable(resident, self.book.room(queue.protected))
        computed = request.num_computed_tokens // self._block_size * self._block_size
        tokens = computed * len(claimed) // max(len(resident), 1)
        ask = Ask(session, seconds, len(resident), len(claimed), fresh, tokens)
        active = queue.active - queue.unclaimed_use(freed) + growth()
        self.book.grant(ask, queue.protected, active, now)
        if session in self.book:
            queue.claim(session, claimed)

    def request_finished(self, session: str) -> None:
        """No request of the session is in the engine any more."""
        self.book.went_away(session)

    def begin_step(self, now: float) -> None:
        self._now = now
        blocks = 0
        while blocks < _BLOCKS_PER_STEP and (claim := self.book.next_expired(now)) is not None:
            blocks += claim.blocks
            self.end(claim.session, Ended.EXPIRED, _lifetime(claim), now)

    def end_step(self) -> None:
        queue, book = self.queue, self.book
        if book.is_over(queue.protected, queue.active):
            for session in book.weakest_first(self._now):
                self.break_claim(session, "active requests have outgrown the pool", self._now)
                if not book.is_over(queue.protected, queue.active):
                    return

    def break_claim(self, session: str, reason: str, now: float) -> None:
        """Active requests need the session's blocks. Nothing if it has no claim."""
        if (claim := self.book.get(session)) is not None:
            if claim.is_awaited and claim.ends_at <= now:
                self.end(session, Ended.EXPIRED, _lifetime(claim), now)
            else:
                self.end(session, Ended.BROKEN_UNDER_PRESSURE, reason, now)

    def end(self, session: str, outcome: Ended, reason: str, now: float) -> None:
        """Nothing if the session has no claim."""
        if session in self.book:
            self.book.end(session, outcome, reason, now)
            self.queue.release(session)

    def end_all(self, reason: str, now: float) -> None:
        for claim in self.book.live():
            self.end(claim.session, Ended.RELEASED, reason, now)

    def __contains__(self, session: str) -> bool:
        return session in self.book

    def add_room(self, room: Room) -> None:
        """Blocks of claims: room while their session is not active, for then they are broken."""
        for claim in self.book.live():
            room.add(claim.session, claim.blocks)

    # ---- steps ----------------------------------------------------------------------------------

    def _make_room(self, blocks: int) -> None:
        reason = "running requests have taken all other blocks"
        for session in self.book.weakest_first(self._now):
            if self.queue.behind.num_free_blocks >= blocks:
                return
            self.break_claim(session, reason, self._now)

    def _seconds(self, request: RetainedRequest) -> tuple[float, bool]:
        """How long the request's session may claim, and whether the request says so itself."""
        try:
            wish = _seconds_wished(request)
        except ValueError:
            wish = None  # counted when it arrived
        return (self._ttl_s, False) if wish is None else (wish, True)


def _seconds_wished(request: RetainedRequest) -> float | None:
    """None where the request says nothing of it. Raises ValueError where that is no number."""
    given = getattr(request.sampling_params, "extra_args", None)
    if not given or RETAIN_KEY not in given:
        return None
    return seconds_asked(given[RETAIN_KEY])


def _lifetime(claim: Claim) -> str:
    return f"its {claim.ends_at - claim.made_at:g} s are over"
