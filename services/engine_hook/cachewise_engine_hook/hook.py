"""The engine's side of the life of a tool call, on one screen.

    request_arrived   the session's idle spell is over; it is announced to the predictor
    begin_step        forecasts are taken from the inbox; who is active is decided; ranks are new
    end_step          who was admitted, after how long, and what had to be computed again
    request_finished  an idle spell begins; its forecast will come up the link
    blocks_freed      the request's blocks become the session's, before they enter the free queue

Called by the scheduler, in its thread. No vLLM here: requests and blocks are what the protocols of
waiting_queue.py and free_queue.py say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cachewise_engine_hook.admission import SWAP_SHARE, ActiveSet
from cachewise_engine_hook.candidates import CandidateRequest, Candidates
from cachewise_engine_hook.claimed_blocks import ClaimableBlock
from cachewise_engine_hook.claims import Ended
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.cost import Speed, blocks_to_come
from cachewise_engine_hook.counts import Counts
from cachewise_engine_hook.decisions import DecisionTrace
from cachewise_engine_hook.forecasts import ForecastLink
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.guard import Guard
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.request_table import RequestTable
from cachewise_engine_hook.retention import RetainedRequest, Retention
from cachewise_engine_hook.reuse import SessionReuse
from cachewise_engine_hook.sessions import (
    ForecastUpdate,
    SessionTable,
    anonymous_owner,
    is_everybodys,
)
from cachewise_engine_hook.standing import Standings
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue

DECIDE_EVERY_S = 0.1
"""Who is active is decided anew when a request has come or gone, and else this often."""

SUPERSEDED_AFTER_TURNS = 2


class Request(CandidateRequest, RetainedRequest, Protocol):
    """What the hook uses of vLLM's Request."""

    session_id: str | None
    num_prompt_tokens: int


class EngineHook:
    """All of CacheWise's state in one engine."""

    def __init__(
        self,
        config: Config,
        sessions: SessionTable,
        free_queue: PredictiveFreeQueue,
        waiting_queue: PrefixAwareQueue[Request],
        link: ForecastLink | None,
        pool_blocks: int,
        block_size: int,
    ) -> None:
        """link: None without a predictor."""
        self.counts, self.speed = Counts(), Speed()
        self.sessions, self.free_queue, self.waiting_queue = sessions, free_queue, waiting_queue
        self.link = link
        self.requests = RequestTable()
        self.mode = config.mode
        self.guard = Guard(pool_blocks)
        self.reuse = SessionReuse(config, sessions, self.guard, self.speed, self._is_active)
        """To be what the free queue asks."""
        if self.mode == "observe":
            config = replace(config, claim_share=0.0)
        self.claims = Retention(config, free_queue, pool_blocks, block_size, self.reuse.wait_s)
        self.active = ActiveSet(
            SWAP_SHARE[config.preset], pool_blocks, self._away_s, self.reuse.recompute_s
        )
        self.active.on_parked = self._parked
        self.trace = DecisionTrace(config.trace_share) if config.trace_share else None
        if self.trace is not None or self.mode == "observe":
            free_queue.on_evicted = self._evicted
        self._id_key, self._block_size = config.id_key, block_size
        self._decided_at = -math.inf
        self._running: Iterable[Request] = ()
        self.standings = Standings(config.tenant_weights)
        self._candidates = Candidates(waiting_queue, self.requests, self.standings, block_size)
        waiting_queue.in_arrival_order = True
        if self.mode != "observe":
            waiting_queue.standing = self.standings.of
        if self.mode == "full":
            waiting_queue.is_eligible = self._is_eligible

    def request_arrived(self, request: Request, now: float) -> None:
        self.waiting_queue.now = now
        self.standings.request_arrived(request, now)
        if not request.session_id:
            return
        key = hash_session(request.session_id, self._id_key)
        self.requests.add(request.request_id, key)
        self._decided_at = -math.inf
        self.sessions.request_arrived(key, now)
        self.claims.request_arrived(request, key, now)
        if self.link is not None:
            self.link.announce(key)
        for forgotten in self.sessions.forgotten:
            self._forget(forgotten, now)
        self.sessions.forgotten.clear()

    def begin_step(self, now: float, running: Iterable[Request]) -> None:
        """running: the requests in the batch before this step."""
        if self.link is not None:
            for update in self.link.take():
                self.take_forecast(update)
        self._running = running
        self.speed.begin_step(now)
        self.free_queue.begin_step(now)
        self.claims.begin_step(now)
        self.waiting_queue.begin_step(now)
        if losers := self.free_queue.take_losers():
            self._look_up_again(losers)
        if now - self._decided_at >= DECIDE_EVERY_S and len(self.waiting_queue):
            self._decided_at = now
            self._decide_who_is_active(now, list(running))

    def end_step(self, scheduled_tokens: Mapping[str, int], tokens: int) -> None:
        """scheduled_tokens: of each request in this step, already in num_computed_tokens.

        tokens: their sum.
        """
        self.speed.end_step(tokens)
        for request, waited_s in self.waiting_queue.end_step():
            self.counts.queue_s.observe(waited_s)
            self._count_admission(request, scheduled_tokens.get(request.request_id, 0))
        if len(self.claims.book):
            self.claims.end_step()

    def request_finished(self, request: Request, now: float) -> None:
        self._decided_at = -math.inf
        self.standings.served(request, request.num_output_tokens, now)
        self.standings.request_left(request)
        if (key := self.requests.session(request.request_id)) is not None:
            self.sessions.request_left(key, now)
            self.free_queue.ranks_changed(key)
            session = self.sessions.get(key)
            if session is None or not session.active_requests:
                self.claims.request_finished(key)

    def blocks_freed(
        self, request: Request, blocks: Iterable[ClaimableBlock], now: float, for_good: bool
    ) -> None:
        """The request is about to give its blocks back: for good, or because it is preempted.

        blocks: in the order of its prompt.
        A KV connector may keep a finished request's blocks for a while, so this can come late.
        """
        key = self.requests.session(request.request_id)
        freed = list(blocks)
        if key is not None and for_good:
            self._supersede(key)
        self.free_queue.claim(key or anonymous_owner(now), freed)
        self._decided_at = -math.inf
        if key is None:
            return
        self._look_up_again((frozenset((key,)),))
        if for_good:
            self.requests.remove(request.request_id)
            self.guard.request_finished(key, len(freed))
            others = (r for r in self._running if r is not request)
            self.claims.blocks_freed(request, key, freed, lambda: self._growth(others), now)
        if (session := self.sessions.get(key)) is not None:
            session.context_tokens = request.num_computed_tokens
            self.free_queue.ranks_changed(key)

    def stop(self) -> None:
        if self.link is not None:
            self.link.stop()

    def take_forecast(self, update: ForecastUpdate) -> None:
        if reason := self.sessions.apply(update):
            self.counts.forecasts_dropped[reason] += 1
            return
        self.free_queue.ranks_changed(update.session)
        if update.ended:
            self.active.forget(update.session)
            self.claims.end(update.session, Ended.RELEASED, "it has ended", update.received_at)
        elif (session := self.sessions.get(update.session)) is not None:
            self.counts.forecast_delay_s.observe(max(update.received_at - session.idle_since, 0.0))

    # ---- who is active --------------------------------------------------------------------------

    def _decide_who_is_active(self, now: float, running: list[Request]) -> None:
        """In mode observe, who would be; in mode order only whether the pool is short."""
        room = self.free_queue.room()
        room.blocks -= self._growth(running)
        self.claims.add_room(room)
        waiting = self._candidates.now()
        if self.mode == "order":
            uncached = self.free_queue.block_counts()["free"]
            needed = sum(candidate.missing_blocks for candidate in waiting)
            self.waiting_queue.in_arrival_order = uncached >= needed
            return
        if self.trace is not None:
            inside = self.trace.waiting_inside(waiting, self._is_active)
        self.active.update(
            now,
            waiting,
            {key for r in running if (key := self.requests.session(r.request_id)) is not None},
            room,
            self.speed.seconds_for(self._block_size),
        )
        if self.trace is not None:
            self.trace.admission(now, waiting, inside, self._is_active, room)
        for key in self.active.take_changed():
            self.waiting_queue.decide_again(self.requests.of(key))
        if self.mode == "full":
            self.waiting_queue.in_arrival_order = not self.active.is_pressed

    def _growth(self, running: Iterable[Request]) -> int:
        """Blocks that these requests will still take."""
        return sum(blocks_to_come(request, self._block_size) for request in running)

    def _is_eligible(self, request: Request) -> bool:
        key = self.requests.session(request.request_id)
        return key is None or key in self.active or request.num_preemptions > 0

    def _is_active(self, key: str) -> bool:
        return key in self.active

    def _away_s(self, key: str, now: float) -> float:
        """Remaining wait of a session as admission sees it: a claim keeps it active."""
        return -1.0 if key in self.claims else self.reuse.wait_s(key, now)

    # ---- what becomes of a session's blocks -----------------------------------------------------

    def _forget(self, key: str, now: float) -> None:
        """The session table was full, and the session had been idle longest."""
        self.free_queue.ranks_changed(key)
        self.active.forget(key)
        self.guard.shadow.forget(key)
        self.claims.end(key, Ended.RELEASED, "too many sessions: it is forgotten", now)
        if self.link is not None:
            self.link.withdraw(key)

    def _supersede(self, key: str) -> None:
        """Blocks that the session's turn has left unused are an edited or compacted history.

        Or another prompt of the same session, like one that asks for a title: so the second turn
        in a row that leaves some decides, and none while another request of the session is here.
        """
        session = self.sessions.get(key)
        if session is None or len(self.requests.of(key)) > 1:
            return
        session.turns_beside += 1
        if not self.free_queue.free_blocks_of(key):
            session.turns_beside = 0
        elif session.turns_beside >= SUPERSEDED_AFTER_TURNS:
            self.free_queue.supersede(key)
            session.turns_beside = 0

    def _look_up_again(self, losers: Iterable[frozenset[str]]) -> None:
        """What is missing has changed for the waiting requests of these owners' sessions."""
        for owners in losers:
            if is_everybodys(owners):
                self.waiting_queue.look_up_all_again()
                return
            for key in owners:
                self.waiting_queue.look_up_again(self.requests.of(key))

    # ---- what is counted and noted --------------------------------------------------------------

    def _parked(self, key: str, why: str, for_whom: str) -> None:
        """Admission has taken the session out of the active set."""
        now = self.waiting_queue.now
        self.free_queue.ranks_changed(key)
        self.claims.break_claim(key, f"{why} by admission", now)
        if self.trace is not None and self.trace.wants(key):
            wait_s, cost_s = self.sessions.time_to_reuse(key, now), self.reuse.recompute_s(key)
            self.trace.note(
                now, key, why, for_whom=for_whom, remaining_wait_s=wait_s, recompute_s=cost_s
            )

    def _evicted(self, owners: Iterable[str], blocks: int, order: str) -> None:
        """For the trace, and for mode observe: full would not have taken an active one's blocks."""
        if self.mode == "observe" and any(key in self.active for key in owners):
            self.counts.observed["evicted_from_active"] += blocks
        if (trace := self.trace) is None:
            return
        now = self.waiting_queue.now
        for key in filter(trace.wants, owners):
            wanted_in_s, parked = self.sessions.time_to_reuse(key, now), key not in self.active
            trace.note(
                now,
                key,
                "evicted",
                blocks=blocks,
                order=order,
                wanted_in_s=wanted_in_s,
                parked=parked,
            )

    def _count_admission(self, request: Request, tokens_in_step: int) -> None:
        hit = request.num_computed_tokens - tokens_in_step
        self.counts.requests += 1
        self.counts.prompt_tokens += request.num_prompt_tokens
        self.counts.hit_tokens += hit
        self.standings.served(request, request.num_tokens - hit, self.waiting_queue.now)
        key = self.requests.session(request.request_id)
        if key is None:
            return
        now, size = self.waiting_queue.now, self._block_size
        if self.mode == "observe" and key not in self.active:
            self.counts.observed["held_back"] += 1
        self.claims.request_admitted(key, hit, now)
        if (session := self.sessions.get(key)) is not None:
            known = min(session.context_tokens, request.num_prompt_tokens)
            again = max(known - hit, 0)
            blocks = -(-request.num_prompt_tokens // size)
            self.guard.request_admitted(key, known // size, hit // size, blocks)
            self.counts.recomputed_tokens += again
            if self.trace is not None and self.trace.wants(key):
                self.trace.note(now, key, "restored", hit_tokens=hit, recomputed_tokens=again)
