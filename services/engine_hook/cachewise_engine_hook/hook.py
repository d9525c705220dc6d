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
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cachewise_engine_hook.admission import OUTPUT_TOKENS, SWAP_SHARE, ActiveSet, Candidate
from cachewise_engine_hook.claimed_blocks import ClaimableBlock
from cachewise_engine_hook.claims import Asked, Ended
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.decisions import DecisionTrace
from cachewise_engine_hook.forecasts import ForecastLink
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.guard import Guard
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.metrics import Counts
from cachewise_engine_hook.retention import RetainedRequest, Retention
from cachewise_engine_hook.sessions import (
    ForecastUpdate,
    Session,
    SessionTable,
    anonymous_owner,
    is_everybodys,
)
from cachewise_engine_hook.standing import Standings
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue, WaitingRequest

DECIDE_EVERY_S = 0.1
"""Who is active is decided anew when a request has come or gone, and else this often."""

SUPERSEDED_AFTER_TURNS = 2

PARKED_S = 1e9
"""Added to the remaining wait of a parked session: its blocks go before any active one's."""

_FULL_STEP_TOKENS = 256
_SPEED_WEIGHT = 0.05
_FIRST_SECONDS_PER_TOKEN = 1e-4


class Request(WaitingRequest, RetainedRequest, Protocol):
    """What the hook uses of vLLM's Request."""

    session_id: str | None
    num_prompt_tokens: int
    num_tokens: int
    num_output_tokens: int
    max_tokens: int


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
        self.counts = Counts()
        self.sessions, self.free_queue, self.waiting_queue = sessions, free_queue, waiting_queue
        self.link = link
        self.mode = config.mode
        self.guard = Guard(pool_blocks)
        self.observed: Counter[str] = Counter()
        """In mode observe: what would have gone otherwise."""
        if self.mode == "observe":
            config = replace(config, claim_share=0.0)
        self.claims = Retention(config, free_queue, pool_blocks, block_size, self._wait_s)
        swap_share = SWAP_SHARE[config.preset]
        self.active = ActiveSet(swap_share, pool_blocks, self._away_s, self._recompute_s)
        self.active.on_parked = self._parked
        self.trace = DecisionTrace(config.trace_share) if config.trace_share else None
        if self.trace is not None or self.mode == "observe":
            free_queue.on_evicted = self._evicted
        self._id_key, self._block_size = config.id_key, block_size
        self._session_of: dict[str, str] = {}
        """Session key of each request in the engine that has one."""
        self._requests_of: dict[str, set[str]] = {}
        """The same the other way round."""
        self._decided_at = -math.inf
        self._running: Iterable[Request] = ()
        self._step_began_at, self._step_tokens = 0.0, 0
        self._seconds_per_token = _FIRST_SECONDS_PER_TOKEN
        self.standings = Standings(config.tenant_weights)
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
        self._session_of[request.request_id] = key
        self._requests_of.setdefault(key, set()).add(request.request_id)
        self._decided_at = -math.inf
        self.sessions.request_arrived(key, now)
        self.claims.request_arrived(request, key, now)
        if self.link is not None:
            self.link.announce(key)
        for forgotten in self.sessions.forgotten:
            self.free_queue.ranks_changed()
            self.active.forget(forgotten)
            self.guard.shadow.forget(forgotten)
            self.claims.end(forgotten, Ended.RELEASED, "too many sessions: it is forgotten", now)
            if self.link is not None:
                self.link.withdraw(forgotten)
        self.sessions.forgotten.clear()

    def begin_step(self, now: float, running: Iterable[Request]) -> None:
        """running: the requests in the batch before this step."""
        if self.link is not None:
            for update in self.link.take():
                self.take_forecast(update)
        self._running = running
        self._measure_speed(now)
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
        self._step_tokens = tokens
        for request, waited_s in self.waiting_queue.end_step():
            self.counts.queue_s.observe(waited_s)
            self._count_admission(request, scheduled_tokens.get(request.request_id, 0))
        if len(self.claims.book):
            self.claims.end_step()

    def request_finished(self, request: Request, now: float) -> None:
        self._decided_at = -math.inf
        self.free_queue.ranks_changed()
        self.standings.served(request, request.num_output_tokens, now)
        self.standings.request_left(request)
        if (key := self._session_of.get(request.request_id)) is not None:
            self.sessions.request_left(key, now)
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
        key = self._session_of.get(request.request_id)
        freed = list(blocks)
        if key is not None and for_good:
            self._supersede(key)
        self.free_queue.claim(key or anonymous_owner(now), freed)
        self._decided_at = -math.inf
        if key is None:
            return
        self._look_up_again((frozenset((key,)),))
        if for_good:
            self._forget_request(request, key)
            self.guard.request_finished(key, len(freed))
            others = (r for r in self._running if r is not request)
            self.claims.blocks_freed(
                request, key, freed, lambda: sum(map(self._blocks_to_come, others)), now
            )
        if (session := self.sessions.get(key)) is not None:
            session.context_tokens = request.num_computed_tokens

    def stop(self) -> None:
        if self.link is not None:
            self.link.stop()

    def take_forecast(self, update: ForecastUpdate) -> None:
        if reason := self.sessions.apply(update):
            self.counts.forecasts_dropped[reason] += 1
            return
        self.free_queue.ranks_changed()
        if update.ended:
            self.active.forget(update.session)
            self.claims.end(update.session, Ended.RELEASED, "it has ended", update.received_at)
        elif (session := self.sessions.get(update.session)) is not None:
            self.counts.forecast_delay_s.observe(max(update.received_at - session.idle_since, 0.0))

    # ---- what the free queue asks (ranking.Reuse) --------------------------------------------

    @property
    def can_rank(self) -> bool:
        return self.mode == "full" and self.sessions.can_rank and not self.guard.follows_lru

    def time_to_reuse(self, key: str, now: float) -> float:
        wait_s = self.sessions.time_to_reuse(key, now)
        return wait_s if key in self.active or key not in self.sessions else wait_s + PARKED_S

    def most_time_to_reuse(self, key: str, now: float, until: float) -> float:
        wait_s = self.sessions.most_time_to_reuse(key, now, until)
        return wait_s if key in self.active or key not in self.sessions else wait_s + PARKED_S

    # ---- steps ----------------------------------------------------------------------------------

    def _decide_who_is_active(self, now: float, running: list[Request]) -> None:
        """In mode observe, who would be; in mode order only whether the pool is short."""
        is_active = self.active.__contains__
        room = self.free_queue.room()
        room.blocks -= sum(map(self._blocks_to_come, running))
        self.claims.add_room(room)
        waiting: dict[str, Candidate] = {}
        for request, missing, waited_s in self.waiting_queue.waiting():
            if (key := self._session_of.get(request.request_id)) is not None:
                needed = missing + self._output_blocks(request)
                candidate = Candidate(
                    key,
                    needed,
                    waited_s,
                    request.num_preemptions > 0,
                    self.waiting_queue.priority(request),
                    self.standings.of(request),
                )
                known = waiting.get(key)
                waiting[key] = candidate.joined(known) if known is not None else candidate
        if self.mode == "order":
            uncached = self.free_queue.block_counts()["free"]
            needed = sum(candidate.missing_blocks for candidate in waiting.values())
            self.waiting_queue.in_arrival_order = uncached >= needed
            return
        if self.trace is not None:
            inside = self.trace.waiting_inside(waiting.values(), is_active)
        parkings = self.active.displaced + self.active.left
        self.active.update(
            now,
            waiting.values(),
            {key for r in running if (key := self._session_of.get(r.request_id)) is not None},
            room,
            self._seconds_per_token * self._block_size,
        )
        if self.active.displaced + self.active.left > parkings:
            self.free_queue.ranks_changed()
        if self.trace is not None:
            self.trace.admission(now, waiting.values(), inside, is_active, room)
        if self.mode == "full":
            self.waiting_queue.in_arrival_order = not self.active.is_pressed
            self.waiting_queue.decide_anew()

    def _is_eligible(self, request: Request) -> bool:
        key = self._session_of.get(request.request_id)
        return key is None or key in self.active or request.num_preemptions > 0

    def _away_s(self, key: str, now: float) -> float:
        """Remaining wait of a session as admission sees it: a claim keeps it active."""
        return -1.0 if key in self.claims else self._wait_s(key, now)

    def _wait_s(self, key: str, now: float) -> float:
        """Remaining wait of a session, by its forecast unless the guard has no trust in them."""
        return self.sessions.time_to_reuse(key, now, by_forecast=not self.guard.follows_lru)

    def _supersede(self, key: str) -> None:
        """Blocks that the session's turn has left unused are an edited or compacted history.

        Or another prompt of the same session, like one that asks for a title: so the second turn
        in a row that leaves some decides, and none while another request of the session is here.
        """
        session = self.sessions.get(key)
        if session is None or len(self._requests_of[key]) > 1:
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
                self.waiting_queue.look_up_again(self._requests_of.get(key, ()))

    def _forget_request(self, request: Request, key: str) -> None:
        del self._session_of[request.request_id]
        requests = self._requests_of[key]
        requests.discard(request.request_id)
        if not requests:
            del self._requests_of[key]

    def _parked(self, key: str, why: str, for_whom: str) -> None:
        """Admission has taken the session out of the active set."""
        now = self.waiting_queue.now
        self.claims.break_claim(key, f"{why} by admission", now)
        if self.trace is not None and self.trace.wants(key):
            wait_s, cost_s = self.sessions.time_to_reuse(key, now), self._recompute_s(key)
            self.trace.note(
                now, key, why, for_whom=for_whom, remaining_wait_s=wait_s, recompute_s=cost_s
            )

    def _evicted(self, owners: Iterable[str], blocks: int, order: str) -> None:
        """For the trace, and for mode observe: full would not have taken an active one's blocks."""
        if self.mode == "observe" and any(key in self.active for key in owners):
            self.observed["evicted_from_active"] += blocks
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

    def _blocks_to_come(self, request: Request) -> int:
        """Blocks that a running request will still take: the rest of its prompt, and its answer."""
        missing = max(request.num_tokens - request.num_computed_tokens, 0)
        return missing // self._block_size + self._output_blocks(request)

    def _output_blocks(self, request: Request) -> int:
        to_come = min(request.max_tokens, OUTPUT_TOKENS) - request.num_output_tokens
        return max(to_come, 0) // self._block_size + 1

    def _measure_speed(self, now: float) -> None:
        """Seconds per token of steps that had much to compute, as a moving average."""
        seconds, self._step_began_at = now - self._step_began_at, now
        if self._step_tokens >= _FULL_STEP_TOKENS and seconds > 0:
            sample = seconds / self._step_tokens
            self._seconds_per_token += _SPEED_WEIGHT * (sample - self._seconds_per_token)

    def _recompute_s(self, key: str) -> float:
        session = self.sessions.get(key)
        return session.context_tokens * self._seconds_per_token if session is not None else 0.0

    def _count_admission(self, request: Request, tokens_in_step: int) -> None:
        hit = request.num_computed_tokens - tokens_in_step
        self.counts.requests += 1
        self.counts.prompt_tokens += request.num_prompt_tokens
        self.counts.hit_tokens += hit
        self.standings.served(request, request.num_tokens - hit, self.waiting_queue.now)
        key = self._session_of.get(request.request_id)
        if key is None:
            return
        now, size = self.waiting_queue.now, self._block_size
        if self.mode == "observe" and key not in self.active:
            self.observed["held_back"] += 1
        self.claims.request_admitted(key, hit, now)
        if (session := self.sessions.get(key)) is not None:
            known = min(session.context_tokens, request.num_prompt_tokens)
            again = max(known - hit, 0)
            blocks = -(-request.num_prompt_tokens // size)
            self.guard.request_admitted(key, known // size, hit // size, blocks)
            self.counts.recomputed_tokens += again
            if self.trace is not None and self.trace.wants(key):
                self.trace.note(now, key, "restored", hit_tokens=hit, recomputed_tokens=again)

    # ---- what metrics.py reads, from another thread ---------------------------------------------

    def evicted(self) -> dict[str, int]:
        queue = self.free_queue
        return {"forecast": queue.evicted_by_forecast, "stock": queue.evicted_in_stock_order}

    def observed_differences(self) -> dict[str, int]:
        """What mode full would have done otherwise; all 0 in the other modes."""
        reordered = self.waiting_queue.out_of_order if self.mode == "observe" else 0
        kinds = ("held_back", "evicted_from_active")
        return {"reordered": reordered, **{kind: self.observed[kind] for kind in kinds}}

    def parkings(self) -> dict[str, int]:
        return {"displaced": self.active.displaced, "left": self.active.left}

    def parked(self) -> int:
        return self.active.parked

    def guard_state(self) -> tuple[int, bool]:
        return self.guard.switches, self.guard.follows_lru

    def overtakes(self) -> int:
        return self.waiting_queue.overtakes

    def waiting(self) -> tuple[int, float]:
        return len(self.waiting_queue), self.waiting_queue.oldest_wait_s()

    def waiting_sessions(self) -> set[str]:
        requests = self.waiting_queue.request_ids()
        return {key for r in requests if (key := self._session_of.get(r)) is not None}

    def blocks(self) -> dict[str, int]:
        """By state; a claimed block that no request uses is protected."""
        blocks, protected = self.free_queue.block_counts(), self.claims.queue.held
        return {**blocks, "used": blocks["used"] - protected, "protected": protected}

    def session_list(self) -> list[Session]:
        return self.sessions.snapshot()

    def claims_asked(self) -> dict[str, int]:
        asked = self.claims.book.asked
        by_outcome = {outcome.value: asked[outcome] for outcome in Asked}
        return {**by_outcome, "malformed": self.claims.malformed}

    def claims_ended(self) -> dict[str, int]:
        ended = self.claims.book.ended
        return {outcome.value: ended[outcome] for outcome in Ended}

    def claims_live(self) -> int:
        return len(self.claims.book)

    def forecasts_malformed(self) -> int:
        return self.link.malformed if self.link is not None else 0

    def forecasts_received(self) -> dict[str, int]:
        return dict(self.link.received) if self.link is not None else {}

    def predictor_connected(self) -> bool:
        return self.link is not None and self.link.connected
