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

Of a thousand that wait, next to nothing changes from one step to the next: so the order is kept, a
request whose place has changed is sorted in again, and only standings that differ, or a change
between this order and that of arrival, have all sorted anew.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cachewise_engine_hook.standing import LIKE_ALL, Standing

LOOKED_UP_PER_STEP = 8
LOOKED_UP_IN_HASTE = 100
"""At once, and per step from then on, when something was lost that is everybody's."""


class WaitingRequest(Protocol):
    """What the queue uses of vLLM's Request."""

    request_id: str
    priority: int
    arrival_time: float
    num_preemptions: int


R = TypeVar("R", bound=WaitingRequest)

_Key = tuple[int, bool, bool, Standing, float, int]
_MOST_VOID = 16
"""Of the places in the order that are void, and as many as are not, before they are taken out."""


@dataclass(slots=True)
class _Entry(Generic[R]):
    request: R
    order: int
    """Place in the order of arrival."""
    since: float
    overtakes: int = 0
    missing_blocks: int | None = None
    """a_i, once somebody has asked; None when it must be looked up again."""
    key: _Key | None = None
    """By which it stands in the order; what the order has by another key is void."""


_Place = tuple[_Key, int, _Entry[R]]
"""In the order: the key, a number that no other has, and whose it is."""


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
        asked of a request when it comes in, and in decide_again."""
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
        self._order: list[_Place[R]] | None = None
        """A heap of those that may run, made when the order is asked for."""
        self._unsorted: dict[str, _Entry[R]] = {}
        """Those of them that are to be sorted in again when it is asked for next."""
        self._sorted = 0
        self._has_standings = self._is_by_arrival = False
        """Of the order: whether a standing has a say in it, and in_arrival_order."""
        self._not_due: deque[_Entry[R]] = deque()
        """Those that have not waited for max_wait_s, and some that have left; the oldest first."""
        self._changed: set[str] = set()
        self._arrivals = 0
        self._round: Iterator[_Entry[R]] = iter(())
        """Goes round the entries, a few per step."""
        self._hasty = 0
        """Entries that are still to be looked up in haste."""

    def begin_step(self, now: float) -> None:
        """Clocks have moved."""
        self.now = now
        self._popped.clear()
        if not self._entries:
            return
        if self._has_standings:
            self._order = None
        while self._not_due and now - self._not_due[0].since >= self._max_wait_s:
            self._sort_again(self._not_due.popleft())
        self._look_up_some(LOOKED_UP_IN_HASTE if self._hasty > 0 else LOOKED_UP_PER_STEP)

    def decide_again(self, request_ids: Iterable[str]) -> None:
        """Admission has decided otherwise of these requests, if they wait."""
        for request_id in request_ids:
            if (entry := self._entries.get(request_id)) is not None:
                self._place(entry)

    def look_up_again(self, request_ids: Iterable[str]) -> None:
        """What is missing has changed for these requests, if they wait."""
        for request_id in request_ids:
            if (entry := self._entries.get(request_id)) is not None:
                self._forget_missing(entry)

    def look_up_all_again(self) -> None:
        """Of many the first at once, and the rest within the next steps."""
        self._round, self._hasty = iter(list(self._entries.values())), len(self._entries)
        self._look_up_some(LOOKED_UP_IN_HASTE)

    def take_changed(self) -> set[str]:
        """Requests that have come or left, or miss other blocks, since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

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
        latest = arrived[-1]
        for entry in [e for e in self._entries.values() if e.order < latest]:
            ahead = len(arrived) - bisect_right(arrived, entry.order)
            self.overtakes += ahead
            was_due = entry.overtakes >= self._max_overtakes
            entry.overtakes += ahead
            if not was_due and entry.overtakes >= self._max_overtakes:
                self._sort_again(entry)
        return [(entry.request, self.now - entry.since) for entry in admitted]

    def waiting(self, request_id: str) -> tuple[R, int, float, int] | None:
        """The request with its a_i, the moment when it came and its place in the order of arrival,
        if it waits."""
        if (entry := self._entries.get(request_id)) is None:
            return None
        return entry.request, self._missing(entry), entry.since, entry.order

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
        entry = _Entry(request, self._arrivals, self.now)
        self._insert(entry)
        if len(self._not_due) > _MOST_VOID + 2 * len(self._entries):
            here = self._entries | self._popped  # what was popped may be prepended again
            self._not_due = deque(e for e in self._not_due if here.get(e.request.request_id) is e)
        self._not_due.append(entry)

    def peek_request(self) -> R:
        return self._front().request

    def pop_request(self) -> R:
        """The request that peek_request shows. It was admitted, unless it is prepended again."""
        entry = self._front()
        self._leaves(entry.request.request_id)
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
        self._leaves(request.request_id)

    def remove_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            if request.request_id in self._entries:
                self._leaves(request.request_id)

    def __bool__(self) -> bool:
        return bool(self._may_run)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[R]:
        return (entry.request for entry in sorted(self._entries.values(), key=self._key))

    # ---- steps ----------------------------------------------------------------------------------

    def _insert(self, entry: _Entry[R]) -> None:
        request_id = entry.request.request_id
        self._entries[request_id] = entry
        self._changed.add(request_id)
        self._place(entry)

    def _leaves(self, request_id: str) -> None:
        self._entries.pop(request_id).key = None
        self._may_run.pop(request_id, None)
        self._unsorted.pop(request_id, None)
        self._changed.add(request_id)

    def _place(self, entry: _Entry[R]) -> None:
        """Puts it among those that may run, or takes it out."""
        request_id = entry.request.request_id
        entry.key = None
        if self.is_eligible(entry.request):
            self._may_run[request_id] = self._unsorted[request_id] = entry
        else:
            self._may_run.pop(request_id, None)
            self._unsorted.pop(request_id, None)

    def _forget_missing(self, entry: _Entry[R]) -> None:
        entry.missing_blocks = None
        self._changed.add(entry.request.request_id)
        if not self._is_by_arrival:
            self._sort_again(entry)

    def _sort_again(self, entry: _Entry[R]) -> None:
        request_id = entry.request.request_id
        if self._may_run.get(request_id) is entry:
            self._unsorted[request_id] = entry

    def _look_up_some(self, count: int) -> None:
        for _ in range(min(count, len(self._entries))):
            self._hasty -= 1
            if (entry := next(self._round, None)) is None:
                self._round, self._hasty = iter(list(self._entries.values())), 0
            elif self._entries.get(entry.request.request_id) is entry:
                self._forget_missing(entry)

    def _front(self) -> _Entry[R]:
        order = self._order
        if order is None or self._is_by_arrival != self.in_arrival_order:
            order = self._order = []
            self._unsorted = dict(self._may_run)
            self._has_standings, self._is_by_arrival = False, self.in_arrival_order
        self._sort_in(order)
        while order and order[0][2].key is not order[0][0]:
            heapq.heappop(order)
        if not order:
            raise IndexError("peek from an empty queue")
        return order[0][2]

    def _sort_in(self, order: list[_Place[R]]) -> None:
        if len(order) + len(self._unsorted) > _MOST_VOID + 2 * len(self._may_run):
            order[:] = [place for place in order if place[2].key is place[0]]
            heapq.heapify(order)
        are_many = len(self._unsorted) > len(order)
        for entry in self._unsorted.values():
            entry.key = self._key(entry)
            self._sorted += 1
            place = (entry.key, self._sorted, entry)
            if are_many:
                order.append(place)
            else:
                heapq.heappush(order, place)
        if are_many:
            heapq.heapify(order)
        self._unsorted.clear()

    def _key(self, entry: _Entry[R]) -> _Key:
        request = entry.request
        priority = self.priority(request)
        if request.num_preemptions:
            return (priority, False, False, LIKE_ALL, request.arrival_time, entry.order)
        if entry.overtakes >= self._max_overtakes or self.now - entry.since >= self._max_wait_s:
            return (priority, True, False, LIKE_ALL, 0, entry.order)
        missing_blocks = 0 if self.in_arrival_order else self._missing(entry)
        standing = self.standing(request)
        self._has_standings = self._has_standings or standing is not LIKE_ALL
        return (priority, True, True, standing, missing_blocks, entry.order)

    def _missing(self, entry: _Entry[R]) -> int:
        if entry.missing_blocks is None:
            entry.missing_blocks = self._missing_blocks(entry.request)
        return entry.missing_blocks
