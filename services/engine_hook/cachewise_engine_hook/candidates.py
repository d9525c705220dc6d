"""The sessions that wait, as admission sees them: one candidate for all requests of a session.

Of a thousand that wait, next to nothing changes from one decision to the next: a candidate is made
anew only where its request has come, was preempted, misses other blocks than before, or stands
otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from cachewise_engine_hook.admission import Candidate
from cachewise_engine_hook.cost import SizedRequest, output_blocks
from cachewise_engine_hook.request_table import RequestTable
from cachewise_engine_hook.standing import StandingRequest, Standings
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue, WaitingRequest


class CandidateRequest(WaitingRequest, StandingRequest, SizedRequest, Protocol):
    """What is used of vLLM's Request."""


R = TypeVar("R", bound=CandidateRequest)


class Candidates(Generic[R]):
    """Made of the requests in the queue that name a session."""

    def __init__(
        self,
        queue: PrefixAwareQueue[R],
        requests: RequestTable,
        standings: Standings,
        block_size: int,
    ) -> None:
        self._queue, self._requests, self._standings = queue, requests, standings
        self._block_size = block_size
        self._known: dict[str, tuple[int, Candidate]] = {}
        """What each request missed, and the candidate that it was alone."""

    def now(self) -> Collection[Candidate]:
        """One for each session."""
        before, known = self._known, dict[str, tuple[int, Candidate]]()
        waiting: dict[str, Candidate] = {}
        standing_of = self._standings.of
        for request, missing, since in self._queue.waiting():
            request_id = request.request_id
            made = before.get(request_id)
            if made is None or not (
                made[0] == missing
                and made[1].since == since
                and made[1].must_run == (request.num_preemptions > 0)
                and made[1].standing == standing_of(request)
            ):
                made = self._made(request, missing, since)
            if made is None:
                continue
            known[request_id] = made
            candidate = made[1]
            other = waiting.setdefault(candidate.session, candidate)
            if other is not candidate:
                waiting[candidate.session] = candidate.joined(other)
        self._known = known
        return waiting.values()

    def _made(self, request: R, missing: int, since: float) -> tuple[int, Candidate] | None:
        if (session := self._requests.session(request.request_id)) is None:
            return None
        candidate = Candidate(
            session,
            missing + output_blocks(request, self._block_size),
            since,
            request.num_preemptions > 0,
            self._queue.priority(request),
            self._standings.of(request),
        )
        return missing, candidate
