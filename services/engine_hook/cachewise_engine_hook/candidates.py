"""The sessions that wait, as admission sees them: one candidate for all requests of a session."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from cachewise_engine_hook.admission import Candidate
from cachewise_engine_hook.cost import SizedRequest, output_blocks
from cachewise_engine_hook.request_table import RequestTable
from cachewise_engine_hook.standing import StandingRequest, Standings
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue, WaitingRequest


class CandidateRequest(WaitingRequest, StandingRequest, SizedRequest, Protocol):
    """What is used of vLLM's Request."""


R = TypeVar("R", bound=CandidateRequest)


def candidates(
    queue: PrefixAwareQueue[R],
    requests: RequestTable,
    standings: Standings,
    block_size: int,
) -> Collection[Candidate]:
    """Of the requests in the queue that name a session."""
    waiting: dict[str, Candidate] = {}
    for request, missing, waited_s in queue.waiting():
        if (key := requests.session(request.request_id)) is not None:
            candidate = Candidate(
                key,
                missing + output_blocks(request, block_size),
                waited_s,
                request.num_preemptions > 0,
                queue.priority(request),
                standings.of(request),
            )
            known = waiting.get(key)
            waiting[key] = candidate.joined(known) if known is not None else candidate
    return waiting.values()
