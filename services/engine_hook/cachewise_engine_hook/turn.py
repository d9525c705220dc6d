"""One LLM request on its way through the middleware: when its turn starts, and how it ends.

It sees each ASGI message after that has been passed on, and answers none.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

from starlette.types import Message

from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_engine_hook.reporter import Reporter, TurnEnded, TurnStarted
from cachewise_engine_hook.tool_calls import Dialect, Outcome, Reading, ResponseParser


class Turn:
    """session: the hash of the session's name."""

    def __init__(
        self, session: str, dialect: type[Dialect], reporter: Reporter, metrics: MiddlewareMetrics
    ) -> None:
        self._session = session
        self._id = secrets.token_hex(8)
        self._dialect = dialect
        self._reporter = reporter
        self._metrics = metrics
        self._is_started = False
        self._is_ended = False
        self._has_client_left = False
        self._is_refused = False
        self._parser: ResponseParser | None = None

    def saw_request(self, message: Message) -> None:
        """The application has taken this message of the request."""
        if message["type"] == "http.disconnect":
            self._has_client_left = True
        elif not message.get("more_body", False) and not self._is_started:
            self._is_started = True
            self._reporter.report(TurnStarted(self._session, self._id, time.monotonic()))

    def saw_response(self, message: Message) -> None:
        """The application has sent this message of the response."""
        if message["type"] == "http.response.start":
            self._begin_response(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and not self._is_ended:
            if self._parser:
                self._parser.feed(message.get("body", b""))
            if not message.get("more_body", False):
                self._end(is_cut=self._has_client_left)
            elif self._parser and self._parser.is_complete:
                self._end(is_cut=False)

    def leave(self) -> None:
        """The application is done with the request. The response should have ended by now."""
        self._end(is_cut=True)

    def _begin_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        by_name = {name.lower(): value for name, value in headers}
        self._is_refused = not 200 <= status < 300
        if not self._is_refused and by_name.get(b"content-encoding", b"identity") == b"identity":
            is_stream = by_name.get(b"content-type", b"").startswith(b"text/event-stream")
            self._parser = ResponseParser(self._dialect, is_stream=is_stream)

    def _end(self, is_cut: bool) -> None:
        if self._is_ended or not self._is_started:
            return
        self._is_ended = True
        reading = self._read(is_cut)
        self._metrics.turns.labels(reading.outcome.value).inc()
        self._metrics.tool_calls.inc(len(reading.tool_calls))
        self._reporter.report(
            TurnEnded(
                self._session, self._id, time.monotonic(), reading.tool_calls, reading.outcome
            )
        )

    def _read(self, is_cut: bool) -> Reading:
        if self._is_refused:
            return Reading((), Outcome.ABORTED)
        if self._parser:
            if not is_cut:
                self._parser.end()
            reading = self._parser.reading(is_cut=is_cut)
        else:
            reading = Reading((), Outcome.ABORTED if is_cut else Outcome.UNSPECIFIED)
        if not is_cut and (self._parser is None or self._parser.is_broken):
            self._metrics.unparsed_bodies.labels("response").inc()
        return reading
