"""All metrics of the predictor: the service tells what happened, this file what is counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from .calls import main_kind
from .events import Event, Forecast, Interval, SessionEnded, Source, TurnEnded, TurnStarted, Wait
from .model import PROBABILITIES, Model
from .quality import Pit, bins, covered
from .sessions import Change

_WAIT_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400, 86_400)
_RPC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_EVENT_KINDS = {
    TurnStarted: "turn_started",
    TurnEnded: "turn_ended",
    SessionEnded: "session_ended",
}
MAX_TOOL_LABELS = 20
"""Tools that have their own labels: those with the most intervals in the model that serves."""

_PREFIX = "cachewise_predictor_"


class Metrics:
    """registry: the process' own in `serve`, a fresh one in each test."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=registry)

        self._events = counter("events", "Events taken, duplicates included", "kind")
        self._rejected = counter("rejected_events", "Malformed events, skipped")
        self._duplicates = counter("duplicate_events", "Events that were known already")
        self._tool_calls = counter("tool_calls", "Tool calls reported by ended turns")
        self._intervals = counter("intervals", "Waits that are over", "end")
        self._waits = histogram("wait_seconds", "Finished waits", _WAIT_BUCKETS)
        self._forecasts = counter("forecasts", "Forecasts of opened intervals", "source")
        self._medians = histogram("forecast_p50_seconds", "Their median waits", _WAIT_BUCKETS)
        self._checked = counter(
            "checked_forecasts", "Forecasts whose wait is over", "tool", "source"
        )
        self._covered = counter(
            "covered_forecasts",
            "Those whose wait was at most the quantile: a share of it if the forecasts are honest",
            "tool",
            "source",
            "quantile",
        )
        self._pit = counter(
            "forecast_pit",
            "Finished waits by the chance that they were given to end sooner, in tenths: equal "
            "counts if the forecasts are honest",
            "tool",
            "source",
            "tenth",
        )
        self._named_tools = frozenset[str]()
        self._samples = gauge("model_samples", "Intervals in the model that serves")
        self._info = Info(_PREFIX + "model", "The last stored model", registry=registry)
        self.open_intervals = gauge("open_intervals", "Sessions that are waiting now")
        self.forecasts_sent = counter("forecasts_sent", "Forecasts pushed to replicas")
        self.watchers = gauge("watchers", "Replicas that watch for forecasts")
        self.store_up = gauge("store_up", "1 if the store answers")
        self.rpc_seconds = histogram("rpc_seconds", "Time per RPC", _RPC_BUCKETS, "method")
        self.dropped_changes = counter(
            "dropped_changes", "Changes of sessions that could not wait for the store any longer"
        )
        self.refused_models = counter("refused_models", "Stored models that were broken")

        self._make_visible()

    def _make_visible(self) -> None:
        """Zeros instead of nothing for labels that have not occurred: rates start from them."""
        for kind in _EVENT_KINDS.values():
            self._events.labels(kind)
        for end in ("finished", "censored"):
            self._intervals.labels(end)
        for source in Source:
            self._forecasts.labels(source.value)

    def count_event(self, event: Event, change: Change) -> None:
        self._events.labels(_EVENT_KINDS[type(event.kind)]).inc()
        if change.is_duplicate:
            self._duplicates.inc()
        elif isinstance(event.kind, TurnEnded):
            self._tool_calls.inc(len(event.kind.calls))

    def count_rejected(self, events: int) -> None:
        self._rejected.inc(events)

    def count_interval(self, interval: Interval) -> None:
        self._intervals.labels("finished" if interval.is_finished else "censored").inc()
        if interval.is_finished:
            self._waits.observe(interval.seconds)

    def count_forecast(self, forecast: Forecast) -> None:
        self._forecasts.labels(forecast.source.value).inc()
        self._medians.observe(forecast.quantiles[0].wait_s)

    def count_quality(self, interval: Interval, source: Source, pit: Pit) -> None:
        labels = (self._tool_label(interval), source.value)
        self._checked.labels(*labels).inc()
        for probability in PROBABILITIES:
            self._covered.labels(*labels, str(probability)).inc(covered(pit, probability))
        for tenth, share in bins(pit):
            self._pit.labels(*labels, str(tenth)).inc(share)

    def show_model(self, model: Model) -> None:
        self._samples.set(model.samples)
        named = frozenset(name for name, _ in model.kinds_by_samples[:MAX_TOOL_LABELS])
        for gone in self._named_tools - named:
            for metric in (self._checked, self._covered, self._pit):
                metric.remove_by_labels({"tool": gone})
        self._named_tools = named

    def show_stored_version(self, version: str) -> None:
        """Only stored versions become a label: the serving one changes every few seconds."""
        self._info.info({"version": version})

    def _tool_label(self, interval: Interval) -> str:
        if interval.wait is not Wait.TOOL or not interval.calls:
            return f"({interval.wait.value})"
        kind = main_kind(interval.calls)
        return kind if kind in self._named_tools else "(other)"
