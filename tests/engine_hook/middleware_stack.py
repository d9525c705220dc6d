"""A real server with the middleware before an application, for tests: its client, its predictor."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import uvicorn
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.middleware import SessionMiddleware
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_proto import predictor_pb2 as pb
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .responses import anthropic_body, anthropic_stream, openai_body, openai_stream

CALLS = [("call_1", "Bash", '{"command": "git status"}'), ("call_2", "Read", '{"path": "ü"}')]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


class Seen:
    """What the application behind the middleware got, and how it answers by the path's query."""

    def __init__(self):
        self.headers = []
        self.bodies = []

    async def answer(self, request: Request) -> Response:
        self.headers.append(request.headers.getlist("x-session-id"))
        if "refuse" in request.query_params:
            return Response("no", 401)
        self.bodies.append(await request.body())
        if "status" in request.query_params:
            return Response("{}", int(request.query_params["status"]))
        is_chat = request.url.path == CHAT
        if "stream" not in request.query_params:
            body = openai_body(CALLS) if is_chat else anthropic_body(CALLS)
            if "gzip" in request.query_params:
                return Response(gzip.compress(body), headers={"content-encoding": "gzip"})
            return Response(body, media_type="application/json")
        data = openai_stream(CALLS) if is_chat else anthropic_stream(CALLS)
        return StreamingResponse(
            self.pieces(data, request.query_params["stream"]), media_type="text/event-stream"
        )

    async def pieces(self, data, how):
        for start in range(0, len(data), 50):
            yield data[start : start + 50]
            await asyncio.sleep(0)
            if start >= len(data) // 2 and how == "hang":
                await asyncio.sleep(3600)
            if start >= len(data) // 2 and how == "fail":
                raise RuntimeError("the engine died")


@contextmanager
def running(app):
    """uvicorn with the app on a free port, in a thread; gives its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


class Stack:
    """Application, middleware and predictor, and a client of them."""

    def __init__(self, predictor_address):
        self.registry = CollectorRegistry()
        self.seen = Seen()
        routes = [Route(p, self.seen.answer, methods=["POST"]) for p in (CHAT, MESSAGES, "/other")]
        self.app = Starlette(routes=routes)
        self.app.add_middleware(SessionMiddleware, MiddlewareMetrics(self.registry))
        settings = {"predictor": predictor_address, "id_key": "k", "replica": "r1", "tenant": "t"}
        additional_config = {"cachewise": settings}
        self.app.state.vllm_config = SimpleNamespace(additional_config=additional_config)

    def count(self, name, **labels):
        return self.registry.get_sample_value(f"cachewise_{name}_total", labels)


def post(stack, path, session="s", **options):
    headers = {"x-session-id": session} if session else {}
    return stack.client.post(path, headers=headers | options.pop("headers", {}), **options)


def check_turn(events, name, outcome, calls=CALLS):
    started, ended = events
    assert started.WhichOneof("kind") == "turn_started"
    assert ended.WhichOneof("kind") == "turn_ended"
    assert started.session == ended.session == hash_session(name, "k")
    assert started.turn == ended.turn
    assert len(started.turn) == 16
    assert {(e.tenant, e.replica) for e in events} == {("t", "r1")}
    assert pb.Outcome.Name(ended.turn_ended.outcome) == f"OUTCOME_{outcome}"
    found = [(call.id, call.name, call.arguments) for call in ended.turn_ended.tool_calls]
    assert found == list(calls)
