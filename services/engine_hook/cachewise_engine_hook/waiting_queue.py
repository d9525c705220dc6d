"""The prefix-aware waiting queue: the request with the fewest blocks still to allocate goes first.

a_i = blocks that request i needs - blocks of its prefix that are resident (paper, section 4). Small
a_i first keeps the sessions running whose prefix is here, before others push it out. Left alone
that starves whoever has nothing resident, so overtaking is bounded: a request that others were
admitted before max_overtakes times, or that has waited max_wait_s, goes next, oldest first.
Preempted requests come before all: they lost their blocks through no fault of their own. With
vLLM's priority policy, `priority` decides first. Before a_i comes the standing: class and tenant.

The order is by tuples (priority, not preempted, not due, standing, a_i, arrival). a_i is looked up
when it is first asked for, and again when the session has lost blocks or got some (look_up_again);
what others bring into the pool, such as a system prompt, is noticed in turns, a few requests per
step. The look-up has no side effects on vLLM's hit statistics.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cachewise_engine_hook.standing import LIKE_ALL, Standing

LOOKED_UP_PER_STEP = 8


class WaitingRequest(Protocol):
    """What the queue uses of vLLM's Request."""

    request_id: str
    priority: int
    arrival_time: float
    num_preemptions: int


R = TypeVar("R", bound=WaitingRequest)

_Key = tuple[int, bool, bool, Standing, float, int]


@dataclass(slots=True)
class _Entry(Generic[R]):
    request: R
    order: int
    """Place in the order of arrival."""
    since: float
    overtakes: int = 0
    missing_blocks: int | None = None
    """a_i, once somebody has asked; None when it must be looked up again."""


class PrefixAwareQueue(Generic[R]):
    """A vLLM RequestQueue. The scheduler brackets each step with begin_step and end_step."""

    def __init__(
        self,
        missing_blocks: Callable[[R], int],
        max_overtakes: int,
        max_wait_s: float,
        by_priority: bool = False,
    ) -> None:
        """missing_blocks: a_i of a request now, in blocks."""
        self.is_eligible: Callable[[R], bool] = lambda request: True
        """Whether admission lets the request run; the queue is "empty" when it lets none. It is
        asked of a request when it comes in, and of all after decide_anew."""
        self.standing: Callable[[R], Standing] = lambda request: LIKE_ALL
        self.in_arrival_order = False
        """While the pool has room for everybody nothing is reordered: the queue is stock vLLM's."""
        self.now = 0.0
        self.overtakes = 0
        self.out_of_order = 0
        """Requests that were admitted while one with fewer blocks missing waited."""
        self._missing_blocks = missing_blocks
        self._max_overtakes, self._max_wait_s = max_overtakes, max_wait_s
        self._by_priority = by_priority
        self._entries: dict[str, _Entry[R]] = {}
        self._may_run: dict[str, _Entry[R]] = {}
        """Those of the entries that are eligible."""
        self._popped: dict[str, _Entry[R]] = {}
        self._order: list[tuple[_Key, _Entry[R]]] | None = None
        """A heap of those that may run, made when the order is asked for."""
        self._arrivals = 0
        self._round: Iterator[_Entry[R]] = iter(())
        """Goes round the entries, a few per step."""

    def begin_step(self, now: float) -> None:
        """Clocks have moved: the order is made anew when next asked for."""
        self.now = now
        self._popped.clear()
        if not self._entries:
            return
        self._order = None
        for _ in range(min(LOOKED_UP_PER_STEP, len(self._entries))):
            if (entry := next(self._round, None)) is None:
                self._round = iter(list(self._entries.values()))
                continue
            entry.missing_blocks = None

    def decide_anew(self) -> None:
        """Admission has decided."""
        entries = self._entries
        self._may_run = {i: e for i, e in entries.items() if self.is_eligible(e.request)}
        self._order = None

    def look_up_again(self, request_ids: Iterable[str]) -> None:
        """What is missing has changed for these requests, if they wait."""
        for request_id in request_ids:
            if (entry := self._entries.get(request_id)) is not None:
                entry.missing_blocks, self._order = None, None

    def look_up_all_again(self) -> None:
        for entry in self._entries.values():
            entry.missing_blocks = None
        self._order = None

    def end_step(self) -> list[tuple[R, float]]:
        """Counts who was overtaken; returns the admitted requests with their seconds of waiting."""
        if not self._popped:
            return []
        admitted = list(self._popped.values())
        self._popped.clear()
        known = [e.missing_blocks for e in self._entries.values() if e.missing_blocks is not None]
        least = min(known, default=math.inf)
        self.out_of_order += sum(least < (entry.missing_blocks or 0) for entry in admitted)
        arrived = sorted(entry.order for entry in admitted)
        for entry in self._entries.values():
            ahead = len(arrived) - bisect_right(arrived, entry.order)
            entry.overtakes += ahead
            self.overtakes += ahead
        return [(entry.request, self.now - entry.since) for entry in admitted]

    def waiting(self) -> list[tuple[R, int, float]]:
        """Each waiting request with its a_i and the moment when it came."""
        return [
            (e.request, self._missing(e) if (m := e.missing_blocks) is None else m, e.since)
            for e in self._entries.values()
        ]

    def priority(self, request: R) -> int:
        """vLLM's, the lower first; the same for all unless its policy is priority."""
        return request.priority if self._by_priority else 0

    def request_ids(self) -> list[str]:
        """The waiting requests now, safe to take from another thread."""
        return list(self._entries)

    def oldest_wait_s(self) -> float:
        """Seconds; safe to ask from another thread."""
        return max((self.now - e.since for e in list(self._entries.values())), default=0.0)

    # ---- vLLM's interface -----------------------------------------------------------------------

    def add_request(self, request: R) -> None:
        self._arrivals += 1
        self._insert(_Entry(request, self._arrivals, self.now))

    def peek_request(self) -> R:
        return self._front().request

    def pop_request(self) -> R:
        """The request that peek_request shows. It was admitted, unless it is prepended again."""
        entry = self._front()
        assert self._order is not None
        heapq.heappop(self._order)
        del self._entries[entry.request.request_id]
        del self._may_run[entry.request.request_id]
        self._popped[entry.request.request_id] = entry
        return entry.request

    def prepend_request(self, request: R) -> None:
        """A preempted request, or one that was popped and could not be scheduled."""
        entry = self._popped.pop(request.request_id, None)
        if entry is None:
            self.add_request(request)
        else:
            self._insert(entry)

    def prepend_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: R) -> None:
        del self._entries[request.request_id]
        self._may_run.pop(request.request_id, None)
        self._order = None

    def remove_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self._entries.pop(request.request_id, None)
            self._may_run.pop(request.request_id, None)
        self._order = None

    def __bool__(self) -> bool:
        return bool(self._may_run)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[R]:
        return (entry.request for entry in sorted(self._entries.values(), key=self._key))

    # ---- steps ----------------------------------------------------------------------------------

    def _insert(self, entry: _Entry[R]) -> None:
        self._entries[entry.request.request_id] = entry
        if self.is_eligible(entry.request):
            self._may_run[entry.request.request_id] = entry
        self._order = None

    def _front(self) -> _Entry[R]:
        if self._order is None:
            self._order = [(self._key(entry), entry) for entry in self._may_run.values()]
            heapq.heapify(self._order)
        if not self._order:
            raise IndexError("peek from an empty queue")
        return self._order[0][1]

    def _key(self, entry: _Entry[R]) -> _Key:
        request = entry.request
        priority = self.priority(request)
        if request.num_preemptions:
            return (priority, False, False, LIKE_ALL, request.arrival_time, entry.order)
        if entry.overtakes >= self._max_overtakes or self.now - entry.since >= self._max_wait_s:
            return (priority, True, False, LIKE_ALL, 0, entry.order)
        missing_blocks = 0 if self.in_arrival_order else self._missing(entry)
        return (priority, True, True, self.standing(request), missing_blocks, entry.order)

    def _missing(self, entry: _Entry[R]) -> int:
        if entry.missing_blocks is None:
            entry.missing_blocks = self._missing_blocks(entry.request)
        return entry.missing_blocks
