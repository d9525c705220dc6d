from __future__ import annotations

from cachewise_engine_hook.claims import Ended
from cachewise_engine_hook.config import Config
from cachewise_engine_hook.counts import Histogram
from cachewise_engine_hook.forecasts import ForecastLink
from cachewise_engine_hook.free_queue import PredictiveFreeQueue
from cachewise_engine_hook.hook import EngineHook
from cachewise_engine_hook.metrics import EngineCollector
from cachewise_engine_hook.readings import Readings
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
    registry.register(EngineCollector(Readings(hook)))
    hook.counts.hit_tokens = 12
    hook.counts.forecasts_dropped["stale"] += 3
    hook.counts.queue_s.observe(0.5)
    hook.sessions.request_arrived("a", 0.0)
    hook.claims.malformed, hook.standings.malformed = 2, 5
    hook.claims.book.defer("a", 0.0)
    value = registry.get_sample_value
    assert value("cachewise_hit_tokens_total") == 12
    assert value("cachewise_forecasts_dropped_total", {"reason": "stale"}) == 3
    assert value("cachewise_queue_seconds_count") == 1
    assert value("cachewise_sessions", {"state": "running"}) == 1
    assert value("cachewise_blocks", {"state": "used"}) == 4
    assert value("cachewise_blocks", {"state": "protected"}) == 0
    assert value("cachewise_predictor_connected") == 0
    assert value("cachewise_forecasts_malformed_total") == 0
    assert value("cachewise_standings_malformed_total") == 5
    assert value("cachewise_claims") == 0
    assert value("cachewise_claims_asked_total", {"outcome": "deferred"}) == 1
    assert value("cachewise_claims_asked_total", {"outcome": "malformed"}) == 2
    for outcome in Ended:
        assert value("cachewise_claims_ended_total", {"outcome": outcome.value}) == 0


def test_messages_of_the_predictor_that_are_no_forecast_are_exported() -> None:
    hook = make_hook()
    hook.link = ForecastLink("127.0.0.1:1", "r", "t")
    hook.link.malformed = 3
    registry = CollectorRegistry()
    registry.register(EngineCollector(Readings(hook)))
    assert registry.get_sample_value("cachewise_forecasts_malformed_total") == 3


def test_a_histogram_counts_each_value_once_in_its_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.5, 5000.0):
        histogram.observe(seconds)
    buckets = dict(
        (s.labels["le"], s.value) for s in histogram.family("x", "x").samples if "le" in s.labels
    )
    assert buckets["0.001"] == 2 and buckets["1.0"] == 3 and buckets["+Inf"] == 4
