"""Counters of the middleware, in the API server's registry: they appear on vLLM's own /metrics."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from cachewise_engine_hook.tool_calls import Outcome

EVENT_KINDS = ("turn_started", "turn_ended")


class MiddlewareMetrics:
    """One registry takes these once: use `middleware_metrics` for the process's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
            labels = (label,) if label else ()
            made = Counter(f"cachewise_{name}", text, labels, registry=registry)
            for value in values:
                # A series that has not counted yet is 0, not absent.
                made.labels(value)
            return made

        self.events = counter("events", "Events queued for the predictor", "kind", EVENT_KINDS)
        self.events_dropped = counter(
            "events_dropped", "Events dropped: the queue was full, or the server stopped"
        )
        self.events_failed = counter(
            "events_failed", "Events whose sending failed; they are sent again"
        )
        self.tool_calls = counter("tool_calls", "Tool calls seen in responses of known sessions")
        self.turns = counter(
            "turns", "Finished turns of known sessions", "outcome", [o.value for o in Outcome]
        )
        self.unparsed_bodies = counter(
            "unparsed_bodies",
            "Bodies that could not be read, and passed on",
            "where",
            ("request", "response"),
        )
        self.anonymous_requests = counter("anonymous_requests", "LLM requests that name no session")
        self.failures = counter(
            "middleware_failures", "Faults of the middleware itself; the traffic went on"
        )


@functools.cache
def middleware_metrics() -> MiddlewareMetrics:
    """The counters in prometheus' default registry, which takes each name only once."""
    return MiddlewareMetrics(REGISTRY)
