from __future__ import annotations

import pytest
from cachewise_bench.replay import Outcome, RequestRecord
from cachewise_bench.scores import score

KEYS = [
    "policy",
    "sessions",
    "seed",
    "session_time_mean_s",
    "session_time_p50_s",
    "session_time_p90_s",
    "session_time_p99_s",
    "session_wall_mean_s",
    "request_p50_s",
    "request_p90_s",
    "request_p99_s",
    "request_max_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "goodput_tok_s",
    "recompute_ratio",
    "hit_rate",
    "evicted_blocks",
    "refilled_blocks",
    "preemptions",
    "max_wait_s",
    "overtakes_max",
    "jain",
    "scheduler_cpu_us_per_step",
    "steps",
    "real_s",
]


def _request(session: int, arrived_s: float, took_s: float, **counts: int) -> RequestRecord:
    """Admitted after a tenth of its time, with its first token after half of it."""
    defaults = {
        "hit_tokens": 0,
        "prompt_tokens": 100,
        "useful_tokens": 50,
        "overtakes": 0,
        "preemptions": 0,
    }
    return RequestRecord(
        session=session,
        turn=0,
        arrived_s=arrived_s,
        admitted_s=arrived_s + took_s / 10,
        first_token_s=arrived_s + took_s / 2,
        finished_s=arrived_s + took_s,
        **(defaults | counts),
    )


def _outcome(*requests: RequestRecord) -> Outcome:
    return Outcome(
        policy="p",
        requests=requests,
        session_walls_s=(30.0, 50.0),
        makespan_s=40.0,
        computed_tokens=600,
        evicted_blocks=7,
        refilled_blocks=3,
        loaded_blocks=0,
        steps=200,
        scheduler_cpu_s=0.01,
    )


TWO_SESSIONS = _outcome(
    _request(0, 0.0, 2.0, overtakes=4),
    _request(1, 1.0, 10.0, hit_tokens=60, preemptions=1, useful_tokens=100),
    _request(0, 9.0, 4.0, hit_tokens=90, preemptions=2),
)


def test_the_figures_of_two_sessions() -> None:
    assert score(TWO_SESSIONS, 2, 5, 1.25) == {
        "policy": "p",
        "sessions": 2,
        "seed": 5,
        "session_time_mean_s": 8.0,  # 6 and 10
        "session_time_p50_s": 8.0,
        "session_time_p90_s": 9.6,
        "session_time_p99_s": 9.96,
        "session_wall_mean_s": 40.0,
        "request_p50_s": 4.0,
        "request_p90_s": 8.8,
        "request_p99_s": 9.88,
        "request_max_s": 10.0,
        "ttft_p50_s": 2.0,
        "ttft_p99_s": 4.94,
        "goodput_tok_s": 5.0,
        "recompute_ratio": 3.0,
        "hit_rate": 0.5,
        "evicted_blocks": 7,
        "refilled_blocks": 3,
        "preemptions": 3,
        "max_wait_s": 1.0,
        "overtakes_max": 4,
        "jain": pytest.approx((100 / 6 + 10) ** 2 / (2 * ((100 / 6) ** 2 + 10**2)), abs=1e-4),
        "scheduler_cpu_us_per_step": 50.0,
        "steps": 200,
        "real_s": 1.25,
    }


def test_the_keys_are_those_that_were_promised_in_their_order() -> None:
    assert list(score(TWO_SESSIONS, 2, 0, 0.0)) == KEYS


def test_equal_sessions_are_treated_equally() -> None:
    same = _outcome(_request(0, 0.0, 3.0), _request(1, 5.0, 3.0))
    assert score(same, 2, 0, 0.0)["jain"] == 1.0
