"""Counters of the middleware, in the API server's registry: they appear on vLLM's own /metrics."""

from __future__ import annotations

import functools

from prometheus_client import REGISTRY, CollectorRegistry, Counter


class MiddlewareMetrics:
    """One registry takes these once: use `middleware_metrics` for the process's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"cachewise_{name}", text, labels, registry=registry)

        self.events = counter("events", "Events queued for the predictor", ("kind",))
        self.events_dropped = counter(
            "events_dropped", "Events dropped: the queue was full, or the server stopped"
        )
        self.events_failed = counter(
            "events_failed", "Events whose sending failed; they are sent again"
        )
        self.tool_calls = counter("tool_calls", "Tool calls seen in responses of known sessions")
        self.turns = counter("turns", "Finished turns of known sessions", ("outcome",))
        self.unparsed_bodies = counter(
            "unparsed_bodies", "Bodies that could not be read, and passed on", ("where",)
        )
        self.anonymous_requests = counter("anonymous_requests", "LLM requests that name no session")
        self.failures = counter(
            "middleware_failures", "Faults of the middleware itself; the traffic went on"
        )


@functools.cache
def middleware_metrics() -> MiddlewareMetrics:
    """The counters in prometheus' default registry, which takes each name only once."""
    return MiddlewareMetrics(REGISTRY)
