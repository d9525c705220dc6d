"""The sessions that wait, as admission sees them: one candidate for all requests of a session.

Of a thousand that wait, next to nothing changes from one decision to the next: a candidate is made
anew only where its request has come, was preempted or misses other blocks than before; all of them
only while standings differ.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
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
        self._alone: dict[str, Candidate] = {}
        """What each waiting request that names a session would be alone."""
        self._of: dict[str, Candidate] = {}
        """By session."""
        self._differed = False
        """Whether standings did, at the last decision."""

    def now(self) -> Collection[Candidate]:
        """One for each session, in no particular order."""
        changed = self._queue.take_changed()
        if self._standings.differ or self._differed:
            changed.update(self._queue.request_ids())
            self._differed = self._standings.differ
        for session in {s for request_id in changed if (s := self._renew(request_id)) is not None}:
            self._join(session)
        return self._of.values()

    # ---- steps ----------------------------------------------------------------------------------

    def _renew(self, request_id: str) -> str | None:
        """Its session, whose candidate may be another one now."""
        before = self._alone.pop(request_id, None)
        session = self._requests.session(request_id) or (before and before.session)
        if session is not None and (waiting := self._queue.waiting(request_id)) is not None:
            request, missing, since, order = waiting
            self._alone[request_id] = Candidate(
                self._queue.priority(request),
                self._standings.of(request),
                missing + output_blocks(request, self._block_size),
                order,
                session,
                since,
                request.num_preemptions > 0,
            )
        return session

    def _join(self, session: str) -> None:
        alone = self._alone
        of_session = [c for i in self._requests.of(session) if (c := alone.get(i)) is not None]
        if of_session:
            self._of[session] = reduce(Candidate.joined, of_session)
        else:
            self._of.pop(session, None)
