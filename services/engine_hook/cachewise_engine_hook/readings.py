"""What metrics.py shows of the engine hook, read from Prometheus' thread.

Nothing here takes a lock: each reading is a number, or goes through a whole container copied by one
call that CPython does not interrupt.
"""

from __future__ import annotations

from cachewise_engine_hook.claims import Asked, Ended
from cachewise_engine_hook.counts import Counts
from cachewise_engine_hook.hook import EngineHook
from cachewise_engine_hook.sessions import Session


class Readings:
    """Counts since the start and the present state of one engine, by name."""

    def __init__(self, hook: EngineHook) -> None:
        self._hook = hook

    @property
    def counts(self) -> Counts:
        return self._hook.counts

    def evicted(self) -> dict[str, int]:
        queue = self._hook.free_queue
        return {"forecast": queue.evicted_by_forecast, "stock": queue.evicted_in_stock_order}

    def observed_differences(self) -> dict[str, int]:
        """What mode full would have done otherwise; all 0 in the other modes."""
        hook = self._hook
        reordered = hook.waiting_queue.out_of_order if hook.mode == "observe" else 0
        kinds = ("held_back", "evicted_from_active")
        return {"reordered": reordered, **{kind: hook.counts.observed[kind] for kind in kinds}}

    def parkings(self) -> dict[str, int]:
        active = self._hook.active
        return {"displaced": active.displaced, "left": active.left}

    def parked(self) -> int:
        return self._hook.active.parked

    def guard_state(self) -> tuple[int, bool]:
        return self._hook.guard.switches, self._hook.guard.follows_lru

    def overtakes(self) -> int:
        return self._hook.waiting_queue.overtakes

    def waiting(self) -> tuple[int, float]:
        queue = self._hook.waiting_queue
        return len(queue), queue.oldest_wait_s()

    def waiting_sessions(self) -> set[str]:
        requests = self._hook.waiting_queue.request_ids()
        return {key for r in requests if (key := self._hook.requests.session(r)) is not None}

    def blocks(self) -> dict[str, int]:
        """By state; a claimed block that no request uses is protected."""
        blocks = self._hook.free_queue.block_counts()
        protected = self._hook.claims.queue.held
        return {**blocks, "used": blocks["used"] - protected, "protected": protected}

    def session_list(self) -> list[Session]:
        return self._hook.sessions.snapshot()

    def claims_asked(self) -> dict[str, int]:
        claims = self._hook.claims
        by_outcome = {outcome.value: claims.book.asked[outcome] for outcome in Asked}
        return {**by_outcome, "malformed": claims.malformed}

    def claims_ended(self) -> dict[str, int]:
        ended = self._hook.claims.book.ended
        return {outcome.value: ended[outcome] for outcome in Ended}

    def claims_live(self) -> int:
        return len(self._hook.claims.book)

    def forecasts_malformed(self) -> int:
        return self._hook.link.malformed if self._hook.link is not None else 0

    def standings_malformed(self) -> int:
        return self._hook.standings.malformed

    def forecasts_received(self) -> dict[str, int]:
        return dict(self._hook.link.received) if self._hook.link is not None else {}

    def predictor_connected(self) -> bool:
        return self._hook.link is not None and self._hook.link.connected
