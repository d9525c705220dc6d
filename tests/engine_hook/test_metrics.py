from __future__ import annotations

import logging
import socket
import urllib.request

import pytest
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.hook import EngineHook
from cachewise_engine_hook.metrics import EngineCollector, Histogram, serve
from cachewise_engine_hook.sessions import SessionTable
from cachewise_engine_hook.waiting_queue import PrefixAwareQueue
from prometheus_client import CollectorRegistry


def make_hook() -> EngineHook:
    sessions = SessionTable(10)
    waiting = PrefixAwareQueue(lambda r: 1, 10, 10.0)
    free_queue = PredictiveFreeQueue([], 4, sessions)
    return EngineHook(Config(), sessions, free_queue, waiting, None, 4, 16)


def test_the_collector_reads_the_hooks_state_when_asked() -> None:
    hook = make_hook()
    registry = CollectorRegistry()
    registry.register(EngineCollector(hook))
    hook.counts.hit_tokens = 12
    hook.counts.forecasts_dropped["stale"] += 3
    hook.counts.queue_s.observe(0.5)
    hook.sessions.request_arrived("a", 0.0)
    value = registry.get_sample_value
    assert value("cachewise_hit_tokens_total") == 12
    assert value("cachewise_forecasts_dropped_total", {"reason": "stale"}) == 3
    assert value("cachewise_queue_seconds_count") == 1
    assert value("cachewise_sessions", {"state": "running"}) == 1
    assert value("cachewise_blocks", {"state": "used"}) == 4
    assert value("cachewise_predictor_connected") == 0


def test_a_histogram_counts_each_value_once_in_its_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.5, 5000.0):
        histogram.observe(seconds)
    buckets = dict(
        (s.labels["le"], s.value) for s in histogram.family("x", "x").samples if "le" in s.labels
    )
    assert buckets["0.001"] == 2 and buckets["1.0"] == 3 and buckets["+Inf"] == 4


def test_a_port_in_use_is_reported_and_does_not_stop_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with caplog.at_level(logging.ERROR, "vllm.cachewise.metrics"):
            serve(EngineCollector(make_hook()), port)
    assert f"metrics_port {port} cannot be opened" in caplog.text


def test_the_metrics_are_served_over_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve(EngineCollector(make_hook()), port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        assert b"cachewise_evicted_blocks_total" in response.read()
