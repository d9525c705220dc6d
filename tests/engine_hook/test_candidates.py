"""What is remembered from decision to decision is what would be found anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cachewise_engine_hook.admission import Candidate
from cachewise_engine_hook.candidates import Candidates
from cachewise_engine_hook.cost import output_blocks
from cachewise_engine_hook.request_table import RequestTable
from cachewise_engine_hook.standing import Standings
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue
from hypothesis import given
from hypothesis import strategies as st

BLOCK = 16


class Waiting:
    """Requests in a queue, whose missing blocks are what the test says."""

    def __init__(self) -> None:
        self.queue: Any = PrefixAwareQueue(lambda request: request.missing, 10, 1e9)
        self.requests, self.standings = RequestTable(), Standings({})
        self.candidates = Candidates(self.queue, self.requests, self.standings, BLOCK)
        self.here: dict[str, Any] = {}

    def arrive(self, name: str, session: str | None, missing: int, tenant: str) -> None:
        extra_args = {"cachewise_tenant": tenant} if tenant else None
        request = SimpleNamespace(
            request_id=name,
            priority=0,
            arrival_time=self.queue.now,
            num_preemptions=0,
            num_tokens=100,
            num_computed_tokens=0,
            num_output_tokens=0,
            max_tokens=50,
            missing=missing,
            sampling_params=SimpleNamespace(extra_args=extra_args),
        )
        self.standings.request_arrived(request, self.queue.now)
        if session is not None:
            self.requests.add(name, session)
        self.here[name] = request
        self.queue.add_request(request)

    def anew(self) -> dict[str, Candidate]:
        found: dict[str, Candidate] = {}
        for request_id in self.queue.request_ids():
            request, missing, since, order = self.queue.waiting(request_id)
            if (session := self.requests.session(request.request_id)) is not None:
                one = Candidate(
                    0,
                    self.standings.of(request),
                    missing + output_blocks(request, BLOCK),
                    order,
                    session,
                    since,
                    request.num_preemptions > 0,
                )
                found[session] = one.joined(found[session]) if session in found else one
        return found


events = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "look", "leave", "preempt", "serve"]),
        st.integers(0, 5),
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 9),
        st.sampled_from(["", "x", "y"]),
    ),
    max_size=30,
)


@given(events)
def test_a_candidate_is_what_its_sessions_requests_are_now(events) -> None:
    waiting = Waiting()
    for i, (what, number, session, missing, tenant) in enumerate(events):
        waiting.queue.begin_step(float(i))
        name = f"{number}"
        request = waiting.here.get(name)
        if what == "arrive" and request is None:
            waiting.arrive(name, session, missing, tenant)
        elif what == "look" and request is not None:
            request.missing = missing
            waiting.queue.look_up_again([name])
        elif what == "serve" and request is not None:
            waiting.standings.served(request, missing * 10_000, float(i))
        elif what == "preempt" and request is not None:
            waiting.queue.remove_request(request)
            request.num_preemptions += 1
            request.missing = missing
            waiting.queue.prepend_request(request)
        elif what == "leave" and request is not None:
            del waiting.here[name]
            waiting.queue.remove_request(request)
            waiting.standings.request_left(request)
            if waiting.requests.session(name) is not None:
                waiting.requests.remove(name)
        assert {c.session: c for c in waiting.candidates.now()} == waiting.anew()
