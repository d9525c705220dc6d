"""All metrics of the predictor: the service tells what happened, this file what is counted."""

from __future__ import annotations

from collections.abc import Iterator

from cachewise_proto.redaction import MAX_ARGUMENT_CHARS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .events import Event, Forecast, Interval, SessionEnded, Source, TurnEnded, TurnStarted
from .model import PROBABILITIES, Model, group_of
from .quality import Pit, bins, covered
from .sessions import Change
from .training import TrainerStatus

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

        def labelled_gauge(name: str, text: str, label: str) -> Gauge:
            return Gauge(_PREFIX + name, text, [label], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=registry)

        self._events = counter("events", "Events taken, duplicates included", "kind")
        self._rejected = counter("rejected_events", "Malformed events, skipped")
        self._duplicates = counter("duplicate_events", "Events that were known already")
        self._tool_calls = counter("tool_calls", "Tool calls reported by ended turns")
        self._dropped_calls = counter(
            "dropped_tool_calls", "Tool calls left out: too many in a turn, or without a name"
        )
        self._cut_arguments = counter(
            "cut_arguments",
            f"Tool calls whose arguments fill the {MAX_ARGUMENT_CHARS} characters that are kept: "
            "cut by the engine, or here",
        )
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
        self._labelled = dict[tuple[Counter, tuple[str, ...]], Counter]()
        self._named_tools = frozenset[str]()
        self._groups = labelled_gauge("model_groups", "Curves of the model that serves", "level")
        self._crowded_out = labelled_gauge(
            "model_groups_crowded_out",
            "Groups without a curve of their own in it, because it has as many as it may",
            "level",
        )
        self._trainer = _TrainerMetrics()
        registry.register(self._trainer)
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
        self._of(self._events, _EVENT_KINDS[type(event.kind)]).inc()
        if change.is_duplicate:
            self._duplicates.inc()
        elif isinstance(event.kind, TurnEnded):
            calls = event.kind.calls
            self._tool_calls.inc(len(calls))
            if event.kind.dropped:
                self._dropped_calls.inc(event.kind.dropped)
            for call in calls:
                if len(call.arguments) >= MAX_ARGUMENT_CHARS:
                    self._cut_arguments.inc()

    def count_rejected(self, events: int) -> None:
        self._rejected.inc(events)

    def count_interval(self, interval: Interval) -> None:
        self._of(self._intervals, "finished" if interval.is_finished else "censored").inc()
        if interval.is_finished:
            self._waits.observe(interval.seconds)

    def count_forecast(self, forecast: Forecast) -> None:
        self._of(self._forecasts, forecast.source.value).inc()
        self._medians.observe(forecast.quantiles[0].wait_s)

    def count_quality(self, interval: Interval, source: Source, pit: Pit) -> None:
        labels = (self._tool_label(interval), source.value)
        self._of(self._checked, *labels).inc()
        for probability in PROBABILITIES:
            counter = self._of(self._covered, *labels, str(probability))
            counter.inc(covered(pit, probability))
        for tenth, share in bins(pit):
            self._of(self._pit, *labels, str(tenth)).inc(share)

    def show_model(self, model: Model) -> None:
        self._samples.set(model.samples)
        for level in ("tenants", "kinds", "parts"):
            self._groups.labels(level).set(model.groups_by_level.get(level, 0))
            self._crowded_out.labels(level).set(model.crowded_out.get(level, 0))
        named = frozenset(name for name, _ in model.kinds_by_samples[:MAX_TOOL_LABELS])
        for gone in self._named_tools - named:
            for metric in (self._checked, self._covered, self._pit):
                metric.remove_by_labels({"tool": gone})
        self._named_tools = named
        self._labelled.clear()

    def show_trainer(self, is_running: bool, status: TrainerStatus | None) -> None:
        """What the trainer of this store told last; the same on every predictor."""
        self._trainer.is_running, self._trainer.status = is_running, status

    def show_stored_version(self, version: str) -> None:
        """Only stored versions become a label: the serving one changes every few seconds."""
        self._info.info({"version": version})

    def _of(self, counter: Counter, *labels: str) -> Counter:
        """counter.labels(*labels), which takes longer than to count."""
        found = self._labelled.get((counter, labels))
        if found is None:
            found = self._labelled[counter, labels] = counter.labels(*labels)
        return found

    def _tool_label(self, interval: Interval) -> str:
        group = group_of(interval)
        if group.kind is None:
            return f"({group.wait.value})"
        return group.kind if group.kind in self._named_tools else "(other)"


class _TrainerMetrics(Collector):
    """The trainer is another process, perhaps on another host, and its counters outlive it: they
    come from the store. So they are the same on every predictor: take their maximum.
    """

    is_running = False
    status: TrainerStatus | None = None

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(_PREFIX + "trainer_up", "1 if some trainer has the lease")
        up.add_metric([], float(self.is_running))
        yield up
        status = self.status or TrainerStatus()
        for name, text in _TRAINER_COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}trainer_{name}", text)
            counter.add_metric([], getattr(status, name))
            yield counter
        for name, (field, text) in _TRAINER_GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}trainer_{name}", text)
            gauge.add_metric([], getattr(status, field))
            yield gauge


_TRAINER_COUNTERS = {
    "trainings": "Models trained",
    "promotions": "Models that took the place of the serving one",
    "refusals": "Models that the gate refused",
    "failures": "Trainings that ended with an error",
    "spoiled": "Parts of the interval stream that were left out because their waits were random",
    "drifts": "Changes seen in the waits of a tool",
    "duplicates": "Intervals that came again and were not counted",
}
_TRAINER_GAUGES = {
    "window_intervals": ("window", "Intervals that models are trained on and judged by"),
    "reserved_intervals": ("reserved", "Those of them that only judge"),
    "lag_intervals": ("lag", "Intervals in the stream that the trainer has not read"),
    "training_seconds": ("training_seconds", "Processor time that the last training took"),
    "last_training_timestamp_seconds": ("trained_at", "When it ended"),
    "candidate_score": ("score", "Mean CRPS of its model on reserved intervals; 0 is perfect"),
    "serving_score": ("serving_score", "Mean CRPS of the serving model on the same"),
}
