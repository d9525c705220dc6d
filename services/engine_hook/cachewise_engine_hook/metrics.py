"""The scheduler's own metrics, read from its state when Prometheus asks.

The step path only adds to plain numbers; no lock is taken there. listing.py serves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cachewise_engine_hook.sessions import Session

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Histogram:
    """Counts in buckets of seconds, without the lock of prometheus_client's own."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        bounds, total, buckets = (*map(str, _SECONDS), "+Inf"), 0, []
        for bound, count in zip(bounds, list(self.counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self.sum)


class Counts:
    """What the scheduler counts; written by its thread only."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.hit_tokens = self.recomputed_tokens = 0
        self.queue_s, self.forecast_delay_s = Histogram(), Histogram()
        self.forecasts_dropped: Counter[str] = Counter()


class Observed(Protocol):
    """The scheduler's state as the collector reads it, from another thread."""

    counts: Counts

    def evicted(self) -> dict[str, int]: ...
    def overtakes(self) -> int: ...
    def waiting(self) -> tuple[int, float]: ...
    def blocks(self) -> dict[str, int]: ...
    def session_list(self) -> list[Session]: ...
    def waiting_sessions(self) -> set[str]: ...
    def forecasts_received(self) -> dict[str, int]: ...
    def forecasts_malformed(self) -> int: ...
    def claims_asked(self) -> dict[str, int]: ...
    def claims_ended(self) -> dict[str, int]: ...
    def claims_live(self) -> int: ...
    def predictor_connected(self) -> bool: ...
    def observed_differences(self) -> dict[str, int]: ...
    def parkings(self) -> dict[str, int]: ...
    def parked(self) -> int: ...
    def guard_state(self) -> tuple[int, bool]: ...


class EngineCollector(Collector):
    """Everything that the scheduler exports."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Family]:
        counts, observed = self._observed.counts, self._observed
        yield _labelled(
            "cachewise_evicted_blocks",
            "Cached blocks handed out for new content, by the order that chose them",
            "order",
            observed.evicted(),
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
            ("overtakes", "Times that a waiting request was overtaken", observed.overtakes()),
            (
                "guard_switches",
                "Times that forecasts lost their say to LRU",
                observed.guard_state()[0],
            ),
            (
                "forecasts_malformed",
                "Messages of the predictor that are no forecast",
                observed.forecasts_malformed(),
            ),
        ):
            yield CounterMetricFamily(f"cachewise_{name}", text, value=value)
        yield _labelled(
            "cachewise_forecasts_received",
            "Forecasts that reached the engine",
            "source",
            observed.forecasts_received(),
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
            observed.claims_asked(),
        )
        yield _labelled(
            "cachewise_claims_ended",
            "Retention claims that ended, by how",
            "outcome",
            observed.claims_ended(),
        )
        yield _labelled(
            "cachewise_sessions_parked",
            "Sessions taken out of the active set, for another's sake or since it had outgrown",
            "reason",
            observed.parkings(),
        )
        yield _labelled(
            "cachewise_observed",
            "In mode observe: what mode full would have done otherwise",
            "difference",
            observed.observed_differences(),
        )
        yield counts.queue_s.family("cachewise_queue_seconds", "Time in the waiting queue")
        yield counts.forecast_delay_s.family(
            "cachewise_forecast_delay_seconds", "End of a turn to the arrival of its forecast"
        )
        yield from self._gauges()

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        observed = self._observed
        requests, age_s = observed.waiting()
        sessions, queued = observed.session_list(), observed.waiting_sessions()
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
            ("parked_sessions", "Sessions with a request that waits for room", observed.parked()),
            ("guard_follows_lru", "1 while forecasts have no say", observed.guard_state()[1]),
            ("claims", "Retention claims that hold now", observed.claims_live()),
            (
                "predictor_connected",
                "1 while the forecast stream is open",
                observed.predictor_connected(),
            ),
        ):
            yield GaugeMetricFamily(f"cachewise_{name}", text, value=value)
        by_state = {
            "running": max(active - waiting, 0),
            "waiting": waiting,
            "idle": len(sessions) - active,
        }
        yield _labelled_gauge("cachewise_sessions", "Sessions in memory", by_state)
        yield _labelled_gauge("cachewise_blocks", "KV blocks of the pool", observed.blocks())


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
