"""Retention claims: promises that a session's resident prefix stays, and what became of each.

A claim covers the leading blocks of one session and has an end. Whoever asks for one is told
(Asked), and every claim ends in one of a few ways (Ended); each of both is an event in a bounded
log, so no promise is broken silently. Two bounds hold at any time:

    protected blocks <= most_blocks                     the share of the pool that claims may take
    protected blocks + active blocks <= usable blocks   the pool less its slack

Protected are the distinct blocks of all claims, active are all others that requests use. A claim
that would break the first is clipped to what is left, one that would break the second is rejected.
When requests then grow beyond the second, claims are broken, the one of the session that will be
away longest first.

The book knows sessions, numbers and times; whose block is whose is claimed_blocks.py's business.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MOST_CLAIMS = 4_096
LOG_SIZE = 1_000
_MOST_SECONDS = 1e9
REUSED_SHARE = 0.5
"""A request that hits at least this share of a claim is the one that the claim was made for; below
it is another prompt of the same session, like the one that asks for a title."""


class Asked(Enum):
    """What a session that asks for a claim is told."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"
    """Granted for less time or fewer blocks than asked."""
    DEFERRED = "deferred"
    """A request of the session is here: decided when it gives its blocks back."""
    REJECTED = "rejected"


class Ended(Enum):
    """How a claim ends."""

    KEPT = "kept"
    """The session came back, and the blocks were there."""
    EXPIRED = "expired"
    EVICTED_BEFORE_REUSE = "evicted_before_reuse"
    """The session came back, and blocks were gone though the claim held. Must never happen."""
    BROKEN_UNDER_PRESSURE = "broken_under_pressure"
    """Active requests needed the blocks."""
    RELEASED = "released"
    """Of no use any more: the session has ended, or has a newer claim, or the cache was reset."""


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """usable_blocks: the pool less its slack. most_blocks: what claims may protect, 0 for none."""

    usable_blocks: int
    most_blocks: int
    most_s: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A session's wish, its blocks cut already to what the share of the pool allows."""

    session: str
    seconds: float
    resident_blocks: int
    """All that it could claim."""
    blocks: int
    fresh_blocks: int
    """Those of blocks that no other claim protects."""
    tokens: int
    """Of the prompt that blocks hold."""


@dataclass(slots=True)
class Claim:
    """A live claim; times in seconds of the engine's clock."""

    session: str
    blocks: int
    tokens: int
    made_at: float
    ends_at: float
    is_awaited: bool = True
    """False while a request of the session is in the engine: its wait in the queue is not the
    session's, so the claim does not expire meanwhile."""


@dataclass(frozen=True, slots=True)
class ClaimEvent:
    """at: seconds of the engine's clock. age_s: of the claim, 0 where it is only asked for."""

    at: float
    session: str
    outcome: str
    reason: str
    blocks: int
    age_s: float


class ClaimBook:
    """All live claims, at most one per session. Every method costs O(log claims) or less, but for
    weakest_first, which sorts them."""

    def __init__(self, limits: ClaimLimits, wait_s: Callable[[str, float], float]) -> None:
        """wait_s: a session's expected remaining wait in seconds, for (session, now)."""
        self.limits = limits
        self.asked: Counter[Asked] = Counter()
        self.ended: Counter[Ended] = Counter()
        self.events: deque[ClaimEvent] = deque(maxlen=LOG_SIZE)
        self._wait_s = wait_s
        self._live: dict[str, Claim] = {}
        self._ends: list[tuple[float, str]] = []
        """A heap of ends; an entry that is not its session's claim's end any more is skipped."""

    def __contains__(self, session: str) -> bool:
        return session in self._live

    def __len__(self) -> int:
        return len(self._live)

    def get(self, session: str) -> Claim | None:
        return self._live.get(session)

    def live(self) -> list[Claim]:
        """The claims now, the oldest first; safe to ask from another thread."""
        return list(self._live.values())

    # ---- asking ---------------------------------------------------------------------------------

    def defer(self, session: str, now: float) -> None:
        """A request that asks for a claim has arrived; grant is called when it leaves."""
        self._answer(session, Asked.DEFERRED, "decided when its blocks are freed", 0, now)

    def room(self, protected: int) -> int:
        """Blocks that claims may still protect where they protect so many."""
        return max(self.limits.most_blocks - protected, 0)

    def grant(self, ask: Ask, protected: int, active: int, now: float) -> Asked:
        """Decides on a claim of a session that has none.

        protected: blocks of the other claims. active: blocks in use that no claim protects, with
        what requests are known to need soon, once the asking session's are free.
        """
        if reason := self._objection(ask, protected, active):
            return self._answer(ask.session, Asked.REJECTED, reason, ask.resident_blocks, now)
        assert ask.session not in self._live, "the older claim is ended first"
        seconds = min(ask.seconds, self.limits.most_s)
        claim = Claim(ask.session, ask.blocks, ask.tokens, now, now + seconds)
        self._live[ask.session] = claim
        self._note_end(now + seconds, ask.session)
        clipped = []
        if seconds < ask.seconds:
            clipped.append(f"{seconds:g} s of {ask.seconds:g}")
        if ask.blocks < ask.resident_blocks:
            clipped.append(f"{ask.blocks} blocks of {ask.resident_blocks}")
        outcome = Asked.CLIPPED if clipped else Asked.ACCEPTED
        return self._answer(ask.session, outcome, ", ".join(clipped), ask.blocks, now)

    def _objection(self, ask: Ask, protected: int, active: int) -> str:
        limits = self.limits
        if not limits.most_blocks:
            return "claims are off"
        if not ask.resident_blocks:
            return "no block of the session is resident"
        if len(self._live) >= MOST_CLAIMS:
            return f"there are {MOST_CLAIMS} claims already"
        if not ask.blocks or ask.fresh_blocks > self.room(protected):
            return f"other claims protect {protected} of {limits.most_blocks} blocks"
        if protected + ask.fresh_blocks + active > limits.usable_blocks:
            return (
                f"{protected} protected + {ask.fresh_blocks} asked + {active} active > "
                f"{limits.usable_blocks} usable blocks"
            )
        return ""

    # ---- ending ---------------------------------------------------------------------------------

    def came_back(self, session: str) -> None:
        """A request of the session is here."""
        if (claim := self._live.get(session)) is not None:
            claim.is_awaited = False

    def went_away(self, session: str) -> None:
        """No request of the session is here any more, and none has used the claim."""
        if (claim := self._live.get(session)) is not None and not claim.is_awaited:
            claim.is_awaited = True
            self._note_end(claim.ends_at, session)

    def admitted(self, session: str, hit_tokens: int, is_resident: bool, now: float) -> bool:
        """A request of the session runs and found so many tokens; whether that ends its claim.

        is_resident: all of the claim's blocks are in the pool with their content.
        """
        claim = self._live[session]
        hit = f"{min(hit_tokens, claim.tokens)} of {claim.tokens} tokens were found"
        if not is_resident:
            self.end(session, Ended.EVICTED_BEFORE_REUSE, hit, now)
            return True
        if hit_tokens < REUSED_SHARE * claim.tokens:
            return False
        differs = ": the prompt differs from there on" if hit_tokens < claim.tokens else ""
        self.end(session, Ended.KEPT, hit + differs, now)
        return True

    def next_expired(self, now: float) -> Claim | None:
        """A claim whose time is over, if there is one."""
        while self._ends and self._ends[0][0] <= now:
            ends_at, session = heapq.heappop(self._ends)
            claim = self._live.get(session)
            if claim is not None and claim.ends_at == ends_at and claim.is_awaited:
                return claim
        return None

    def is_over(self, protected: int, active: int) -> bool:
        """Whether claims must be broken: requests use more than is left to them."""
        return bool(self._live) and protected + active > self.limits.usable_blocks

    def weakest_first(self, now: float) -> list[str]:
        """The order in which claims are broken: whose session will be away longest goes first."""
        order = [(-self._wait_s(session, now), -c.made_at, session) for session, c in self._items()]
        return [session for _, _, session in sorted(order)]

    def end(self, session: str, outcome: Ended, reason: str, now: float) -> None:
        """Ends the session's claim. Raises KeyError where it has none."""
        claim = self._live.pop(session)
        self.ended[outcome] += 1
        self._log(session, outcome.value, reason, claim.blocks, now, now - claim.made_at)

    # ---- steps ----------------------------------------------------------------------------------

    def _items(self) -> list[tuple[str, Claim]]:
        return list(self._live.items())

    def _note_end(self, ends_at: float, session: str) -> None:
        heapq.heappush(self._ends, (ends_at, session))
        if len(self._ends) > 2 * len(self._live) + 64:
            self._ends = [(c.ends_at, s) for s, c in self._items() if c.is_awaited]
            heapq.heapify(self._ends)

    def _answer(self, session: str, outcome: Asked, reason: str, blocks: int, now: float) -> Asked:
        self.asked[outcome] += 1
        self._log(session, outcome.value, reason, blocks, now, 0.0)
        return outcome

    def _log(
        self, session: str, outcome: str, reason: str, blocks: int, now: float, age_s: float
    ) -> None:
        self.events.append(ClaimEvent(now, session, outcome, reason, blocks, age_s))


def seconds_asked(value: object) -> float:
    """The number of seconds that a hint names. Raises ValueError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"not a number of seconds: {value!r}")
    return float(min(value, _MOST_SECONDS))
