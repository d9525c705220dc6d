"""The scheduler's own metrics, read from its state when Prometheus asks.

The step path only adds to plain numbers (counts.py); readings.py takes them without a lock.
listing.py serves the page.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cachewise_engine_hook.readings import Readings

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class EngineCollector(Collector):
    """Everything that the scheduler exports."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        counts, readings = self._readings.counts, self._readings
        yield _labelled(
            "cachewise_evicted_blocks",
            "Cached blocks handed out for new content, by the order that chose them",
            "order",
            readings.evicted(),
        )
        for name, text, value in (
            ("requests_scheduled", "Requests admitted to the batch", counts.requests),
            ("prompt_tokens", "Prompt tokens of admitted requests", counts.prompt_tokens),
            ("hit_tokens", "Prompt tokens found in the pool", counts.hit_tokens),
            (
                "recomputed_tokens",
                "Prompt tokens computed again that the session had computed before",
                counts.recomputed_tokens,
            ),
            ("overtakes", "Times that a waiting request was overtaken", readings.overtakes()),
            (
                "guard_switches",
                "Times that forecasts lost their say to LRU",
                readings.guard_state()[0],
            ),
            (
                "forecasts_malformed",
                "Messages of the predictor that are no forecast",
                readings.forecasts_malformed(),
            ),
            (
                "standings_malformed",
                "Requests whose class or tenant is none, and counts as not said",
                readings.standings_malformed(),
            ),
        ):
            yield CounterMetricFamily(f"cachewise_{name}", text, value=value)
        yield _labelled(
            "cachewise_forecasts_received",
            "Forecasts that reached the engine",
            "source",
            readings.forecasts_received(),
        )
        yield _labelled(
            "cachewise_forecasts_dropped",
            "Forecasts of no use on arrival",
            "reason",
            counts.forecasts_dropped.copy(),
        )
        yield _labelled(
            "cachewise_claims_asked",
            "Retention claims asked for, by what the session was told",
            "outcome",
            readings.claims_asked(),
        )
        yield _labelled(
            "cachewise_claims_ended",
            "Retention claims that ended, by how",
            "outcome",
            readings.claims_ended(),
        )
        yield _labelled(
            "cachewise_sessions_parked",
            "Sessions taken out of the active set, for another's sake or since it had outgrown",
            "reason",
            readings.parkings(),
        )
        yield _labelled(
            "cachewise_observed",
            "In mode observe: what mode full would have done otherwise",
            "difference",
            readings.observed_differences(),
        )
        yield counts.queue_s.family("cachewise_queue_seconds", "Time in the waiting queue")
        yield counts.forecast_delay_s.family(
            "cachewise_forecast_delay_seconds", "End of a turn to the arrival of its forecast"
        )
        yield from self._gauges()

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        readings = self._readings
        requests, age_s = readings.waiting()
        sessions, queued = readings.session_list(), readings.waiting_sessions()
        active = sum(s.active_requests > 0 for s in sessions)
        waiting = sum(s.key in queued for s in sessions)
        for name, text, value in (
            ("waiting_requests", "Requests in the waiting queue", requests),
            ("waiting_age_seconds", "Age of the oldest waiting request", age_s),
            (
                "sessions_with_forecast",
                "Idle sessions that have a forecast",
                sum(s.forecast is not None for s in sessions),
            ),
            ("parked_sessions", "Sessions with a request that waits for room", readings.parked()),
            ("guard_follows_lru", "1 while forecasts have no say", readings.guard_state()[1]),
            ("claims", "Retention claims that hold now", readings.claims_live()),
            (
                "predictor_connected",
                "1 while the forecast stream is open",
                readings.predictor_connected(),
            ),
        ):
            yield GaugeMetricFamily(f"cachewise_{name}", text, value=value)
        by_state = {
            "running": max(active - waiting, 0),
            "waiting": waiting,
            "idle": len(sessions) - active,
        }
        yield _labelled_gauge("cachewise_sessions", "Sessions in memory", by_state)
        yield _labelled_gauge("cachewise_blocks", "KV blocks of the pool", readings.blocks())


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _labelled_gauge(name: str, text: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
