"""Names each LLM request's session for vLLM, and tells the predictor when its turns start and end.

vLLM puts it around its API server with
`--middleware cachewise_engine_hook.middleware.SessionMiddleware`. The life of one request:

1. Its body is taken from the server, up to MAX_BODY_BYTES, to see which session it names.
2. The application gets the same messages, with the session's name in X-Session-ID, from which vLLM
   makes the request's session_id, and with another router's hints in vLLM's words (hints.py). When
   it takes the last of them, the turn starts. (A request that vLLM's check of API keys refuses is
   no turn: its body is never taken.)
3. Each message of the response goes to the client at once and unchanged, then to turn.py.
4. The turn ends when the response says so or is over, the client leaves, or the application fails.

All other paths pass untouched. Faults of our own are caught in one place, `_fail_open`: they are
counted, and the traffic goes on. Only a bad setting is fatal, and only at start-up.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cachewise_engine_hook.config import Config, ConfigError
from cachewise_engine_hook.hints import PRIORITY_HEADER, vllm_priority
from cachewise_engine_hook.identity import (
    SESSION_HEADER,
    Session,
    hash_session,
    read_body,
    resolve_session,
)
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics, middleware_metrics
from cachewise_engine_hook.reporter import GrpcReporter, NullReporter, Reporter
from cachewise_engine_hook.tool_calls import AnthropicMessages, Dialect, OpenAIChat
from cachewise_engine_hook.turn import Turn

# A child of vLLM's logger, so that its handlers and levels hold for ours.
logger = logging.getLogger("vllm.cachewise")

MAX_BODY_BYTES = 32 << 20
"""A longer request is not held back: only its headers can name its session."""
CLOSE_TIMEOUT_S = 2.0

CHAT_PATH = "/v1/chat/completions"
DIALECTS: Mapping[str, type[Dialect]] = {CHAT_PATH: OpenAIChat, "/v1/messages": AnthropicMessages}

P = ParamSpec("P")
T = TypeVar("T")


class SessionMiddleware:
    """metrics: the process's own if not given, since vLLM gives the application only."""

    def __init__(self, app: ASGIApp, metrics: MiddlewareMetrics | None = None) -> None:
        self._app = app
        self._metrics = metrics or middleware_metrics()
        self._config: Config | None = None
        self._reporter: Reporter = NullReporter()
        self._has_logged_a_fault = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(scope, receive, send)
        elif dialect := _dialect_of(scope):
            await self._serve_turn(dialect, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM has filled the application's state before this: here a bad setting can stop it."""

        async def receive_and_close() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await asyncio.to_thread(self._reporter.close, CLOSE_TIMEOUT_S)
            return message

        try:
            self._set_up(scope)
        except ConfigError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": f"cachewise: {error}"})
            return
        await self._app(scope, receive_and_close, send)

    async def _serve_turn(
        self, dialect: type[Dialect], scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = _RequestBody(receive)
        await body.take()
        prepared = self._fail_open(self._prepare, dialect, scope, body)
        inner_scope, turn = prepared or (scope, None)
        if turn is None:
            await self._app(inner_scope, body.receive, send)
            return

        async def receive_request() -> Message:
            message = await body.receive()
            self._fail_open(turn.saw_request, message)
            return message

        async def send_response(message: Message) -> None:
            await send(message)
            self._fail_open(turn.saw_response, message)

        try:
            await self._app(inner_scope, receive_request, send_response)
        finally:
            self._fail_open(turn.leave)

    def _set_up(self, scope: Scope) -> Config:
        """Reads the settings, once, from vLLM's state and the environment. Raises ConfigError."""
        if self._config is None:
            # vLLM's CPU-only render server has no engine, and so no vllm_config.
            vllm_config = getattr(scope["app"].state, "vllm_config", None)
            additional_config = getattr(vllm_config, "additional_config", None)
            config = Config.load(additional_config, os.environ)
            if config.predictor:
                self._reporter = GrpcReporter(
                    config.predictor,
                    config.tenant,
                    config.replica,
                    config.event_queue_size,
                    self._metrics,
                )
            self._config = config
        return self._config

    def _prepare(
        self, dialect: type[Dialect], scope: Scope, body: _RequestBody
    ) -> tuple[Scope, Turn | None]:
        """The scope for the application, and the turn unless the request names no session."""
        config = self._set_up(scope)
        fields = self._fields(body)
        session = resolve_session(
            scope["headers"], fields, vllm_reads_body=_path(scope) == CHAT_PATH
        )
        inner_scope = _with_priority(_with_session(scope, session), vllm_priority(fields))
        if session is None:
            self._metrics.anonymous_requests.inc()
            return inner_scope, None
        name_hash = hash_session(session.name, config.id_key)
        return inner_scope, Turn(name_hash, dialect, self._reporter, self._metrics)

    def _fields(self, body: _RequestBody) -> Mapping[str, object]:
        """What of the body can name a session: nothing if it cannot be read, which is counted."""
        if body.is_cut:
            return {}
        try:
            if body.is_whole:
                return read_body(body.data())
        except (ValueError, RecursionError):
            pass
        self._metrics.unparsed_bodies.labels("request").inc()
        return {}

    def _fail_open(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The step's result; None if it fails. The first fault is logged, all are counted."""
        try:
            return step(*args, **kwargs)
        except Exception:
            self._metrics.failures.inc()
            if not self._has_logged_a_fault:
                logger.exception("A fault in the session middleware; the request goes on")
            self._has_logged_a_fault = True
            return None


class _RequestBody:
    """A request's messages: those that were taken early are given again, then the server's."""

    def __init__(self, receive: Receive) -> None:
        self.is_whole = False
        self.is_cut = False
        self._receive = receive
        self._taken: deque[Message] = deque()

    async def take(self) -> None:
        size = 0
        while size <= MAX_BODY_BYTES:
            message = await self._receive()
            self._taken.append(message)
            if message["type"] != "http.request":
                self.is_cut = True
                return
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                self.is_whole = size <= MAX_BODY_BYTES
                return

    def data(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self._taken)

    async def receive(self) -> Message:
        return self._taken.popleft() if self._taken else await self._receive()


def _dialect_of(scope: Scope) -> type[Dialect] | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    return DIALECTS.get(_path(scope))


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _with_session(scope: Scope, session: Session | None) -> Scope:
    """The scope with X-Session-ID as vLLM must see it: the name, or no header if there is none.

    A name in the body, which vLLM reads before the header, may be one that no header can carry.
    """
    name = SESSION_HEADER.encode()
    headers = [(key, value) for key, value in scope["headers"] if key.lower() != name]
    if session and session.header is not None:
        headers.append((name, session.header))
    return {**scope, "headers": headers}


def _with_priority(scope: Scope, priority: int | None) -> Scope:
    """The scope with vLLM's priority, unless the request says none or has one in a header."""
    headers = scope["headers"]
    if priority is None or any(key.lower() == PRIORITY_HEADER for key, _ in headers):
        return scope
    return {**scope, "headers": [*headers, (PRIORITY_HEADER, str(priority).encode())]}
