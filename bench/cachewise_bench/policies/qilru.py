"""qilru: LRU that spares what the waiting requests want. Queue-informed LRU, vLLM RFC 48485.

Before it evicts, it looks up the resident prefixes of the first max_num_running_reqs waiting
requests: free blocks that none of them wants go first, in LRU order, then the wanted ones, in LRU
order. Admission stays FCFS and nothing is pinned.

The RFC works on blocks; here a session stands for its blocks (see SessionLru).
"""

from __future__ import annotations

from itertools import islice

from cachewise_bench.policies.ranked import SessionLru


class Qilru(SessionLru):
    name = "qilru"
    source = "vLLM RFC 48485: queue-informed LRU"

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        scheduler = self.engine.scheduler
        first = islice(scheduler.waiting, scheduler.max_num_running_reqs)
        self._wanted = {request.session_id for request in first}

    def time_to_reuse(self, session: str, now: float) -> float:
        unused_s = now - self._left_at.get(session, now)
        # Wanted ones are below 1 and the others above, both in the order of their last use.
        return unused_s / (1 + unused_s) if session in self._wanted else 1 + unused_s
