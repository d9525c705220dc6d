from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from cachewise_bench.measure import ratios, recomputed_tokens, summarise
from cachewise_bench.watch import EvictionCount

from tests.bench.sample_turns import request


def removed(*hashes: bytes) -> bytes:
    event = {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}
    return msgspec.msgpack.encode([1.0, [event, {"type": "AllBlocksCleared"}], 0])


def test_evictions_are_counted_by_block() -> None:
    count = EvictionCount()
    count.take(0, removed(b"a", b"b"))
    count.take(1, removed(b"c"))
    assert (count.evicted_blocks, count.lost_messages) == (3, 0)


def test_messages_that_did_not_arrive_are_noticed() -> None:
    count = EvictionCount()
    for sequence in (5, 6, 9):
        count.take(sequence, removed(b"a"))
    assert count.lost_messages == 2


def test_recomputed_tokens_are_those_the_session_had_and_did_not_hit() -> None:
    turns = [
        request(turn=0, prompt_tokens=1000, output_tokens=50),
        request(turn=1, prompt_tokens=1200, cached_tokens=1024),  # 1,050 were there: 26 again
        request(turn=2, prompt_tokens=1400, cached_tokens=0),  # all 1,250 again
    ]
    assert recomputed_tokens(turns) == 26 + 1250


def test_new_tokens_are_not_recomputed() -> None:
    assert recomputed_tokens([request(prompt_tokens=5000)]) == 0


def test_session_time_is_the_sum_of_latencies_and_wall_includes_the_waits() -> None:
    requests = [
        request("a", 0, started_s=0, latency_s=1),
        request("a", 1, started_s=5, latency_s=2),
        request("b", 0, started_s=1, latency_s=5),
    ]
    result = summarise(requests, EvictionCount(7), 3, 3)
    assert result.session_time_mean_s == 4.0
    assert result.session_wall_mean_s == 6.0
    assert (result.requests, result.failed_requests, result.evicted_blocks) == (3, 0, 7)


def test_failed_requests_are_counted_and_left_out_of_latencies() -> None:
    requests = [request(latency_s=1.0), request(turn=1, latency_s=300.0, error="HTTP 500")]
    result = summarise(requests, EvictionCount(), None, None)
    assert (result.failed_requests, result.request_p99_s, result.tool_calls_emitted) == (1, 1.0, 1)


def test_a_ratio_above_one_means_that_cachewise_is_better() -> None:
    ours = summarise([request(latency_s=2.0)], EvictionCount(10), 1, 1)
    stock = replace(ours, session_time_mean_s=5.0, evicted_blocks=30)
    assert ratios(stock, ours)["session_time_mean_s"] == pytest.approx(2.5)
    assert ratios(stock, ours)["evicted_blocks"] == pytest.approx(3.0)
    assert ratios(stock, replace(ours, evicted_blocks=0))["evicted_blocks"] is None
