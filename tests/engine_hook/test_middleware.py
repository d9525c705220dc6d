"""middleware.py and turn.py: every byte passes unchanged, and each turn is reported."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from cachewise_engine_hook import middleware, turn
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.middleware import SessionMiddleware
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_proto import predictor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .recording_predictor import RecordingPredictor, serve
from .responses import (
    anthropic_body,
    anthropic_stream,
    openai_body,
    openai_stream,
)

CALLS = [("call_1", "Bash", '{"command": "git status"}'), ("call_2", "Read", '{"path": "ü"}')]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


# --- The exact ASGI messages, with and without the middleware ---


class ScriptedApp:
    """Takes the request's messages, then sends its own; keeps what it took."""

    def __init__(self, response):
        self.response = response
        self.state = SimpleNamespace()
        self.received = []
        self.scope = None

    async def __call__(self, scope, receive, send):
        self.scope = scope
        while True:
            self.received.append(await receive())
            if not self.received[-1].get("more_body"):
                break
        for message in self.response:
            await send(message)
        self.received.append(await receive())


async def exchange(app, scope, request):
    """What the client gets of the app; after the request's messages the client leaves."""
    left = [*request, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return left.pop(0)

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


def http_scope(path=CHAT, headers=(), app=None, method="POST"):
    app = app or SimpleNamespace(state=SimpleNamespace())
    headers = list(headers)
    return {"type": "http", "method": method, "path": path, "headers": headers, "app": app}


def wrap(app):
    registry = CollectorRegistry()
    return SessionMiddleware(app, MiddlewareMetrics(registry)), registry


def in_messages(kind, chunks):
    """One ASGI message per chunk. The last may lack its more_body, as some servers send it."""
    return [{"type": kind, "body": chunk, "more_body": True} for chunk in chunks[:-1]] + [
        {"type": kind, "body": chunks[-1]}
    ]


bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [openai_body(CALLS), openai_stream(CALLS), anthropic_body(CALLS), anthropic_stream(CALLS)]
    ),
    st.just(json.dumps({"session_id": "s", "messages": []}).encode()),
)


@st.composite
def chunked(draw):
    data = draw(bodies)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


response_headers = st.sampled_from(
    [
        [(b"content-type", b"application/json")],
        [(b"content-type", b"text/event-stream; charset=utf-8")],
        [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")],
        [],
    ]
)


@given(
    path=st.sampled_from([CHAT, MESSAGES, "/v1/completions", "/"]),
    method=st.sampled_from(["POST", "GET"]),
    name=st.none() | st.binary(max_size=300),
    request_chunks=chunked(),
    status=st.sampled_from([200, 400, 500]),
    headers=response_headers,
    response_chunks=chunked(),
)
def test_every_message_passes_unchanged_in_both_directions(
    path, method, name, request_chunks, status, headers, response_chunks
):
    request = in_messages("http.request", request_chunks)
    response = [{"type": "http.response.start", "status": status, "headers": headers}]
    response += in_messages("http.response.body", response_chunks)
    scope_headers = [(b"accept", b"*/*")] + ([(b"x-session-id", name)] if name is not None else [])
    plain, watched = ScriptedApp(response), ScriptedApp(response)
    wrapped, registry = wrap(watched)
    for app in (plain, wrapped):
        scope = http_scope(path, scope_headers, method=method)
        assert asyncio.run(exchange(app, scope, request)) == response
        assert scope["headers"] == scope_headers
    assert watched.received == plain.received
    others = [header for header in watched.scope["headers"] if header[0] != b"x-session-id"]
    assert others == [(b"accept", b"*/*")]
    assert registry.get_sample_value("cachewise_middleware_failures_total") == 0


async def test_a_body_over_the_limit_is_not_held_back(monkeypatch):
    monkeypatch.setattr(middleware, "MAX_BODY_BYTES", 100)
    request = in_messages("http.request", [b"x" * 60] * 5)
    response = in_messages("http.response.body", [b""])
    app = ScriptedApp(response)
    wrapped, registry = wrap(app)
    taken = asyncio.Queue()

    async def receive():
        message = request.pop(0) if request else {"type": "http.disconnect"}
        taken.put_nowait(message)
        return message

    async def send(message):
        pass

    await wrapped(http_scope(headers=[(b"x-session-id", b"s")]), receive, send)
    assert [len(message.get("body", b"")) for message in app.received] == [60] * 5 + [0]
    assert (b"x-session-id", b"s") in app.scope["headers"]
    assert registry.get_sample_value("cachewise_unparsed_bodies_total", {"where": "request"}) == 1


async def test_a_request_without_a_session_loses_a_session_header_that_is_none():
    app = ScriptedApp([])
    wrapped, registry = wrap(app)
    request = in_messages("http.request", [b"{}"])
    await exchange(
        wrapped, http_scope(headers=[(b"X-Session-ID", b"MTAuMC4zLjE3OjgwMDA=")]), request
    )
    assert app.scope["headers"] == []
    assert registry.get_sample_value("cachewise_anonymous_requests_total") == 1


async def test_a_client_that_leaves_while_it_sends_its_request_has_no_turn():
    app = ScriptedApp([])
    wrapped, registry = wrap(app)
    request = [{"type": "http.request", "body": b"{", "more_body": True}]
    headers = [(b"x-session-id", b"s")]
    with pytest.raises(IndexError):
        await exchange(wrapped, http_scope(headers=headers), request)
    assert app.received == [*request, {"type": "http.disconnect"}]
    assert registry.get_sample_value("cachewise_unparsed_bodies_total", {"where": "request"}) == 0


@pytest.mark.parametrize(
    "broken", ["ResponseParser", "TurnStarted", "TurnEnded"], ids=lambda name: name
)
async def test_a_fault_of_ours_is_counted_and_the_traffic_goes_on(monkeypatch, broken):
    def fail(*_, **__):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(turn, broken, fail)
    response = [{"type": "http.response.start", "status": 200, "headers": []}]
    response += in_messages("http.response.body", [openai_body(CALLS)])
    wrapped, registry = wrap(ScriptedApp(response))
    scope = http_scope(headers=[(b"x-session-id", b"s")])
    request = in_messages("http.request", [b"{}"])
    assert await exchange(wrapped, scope, request) == response
    assert registry.get_sample_value("cachewise_middleware_failures_total") >= 1


async def test_a_fault_while_the_session_is_resolved_leaves_the_headers_alone(monkeypatch):
    monkeypatch.setattr(middleware, "resolve_session", None)
    app = ScriptedApp([])
    wrapped, registry = wrap(app)
    headers = [(b"x-session-id", b"s")]
    await exchange(wrapped, http_scope(headers=headers), in_messages("http.request", [b"{}"]))
    assert app.scope["headers"] == headers
    assert registry.get_sample_value("cachewise_middleware_failures_total") == 1


# --- A real server, a real client, a real predictor ---


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


@pytest.fixture
def predictor():
    return RecordingPredictor()


@pytest.fixture
def stack(predictor):
    with serve(predictor) as address:
        stack = Stack(address)
        with running(stack.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            stack.client = client
            yield stack


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


@pytest.mark.parametrize("query", ["", "?stream=all"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_turn_with_tool_calls_is_reported(stack, predictor, path, query):
    response = post(stack, path + query, json={"messages": []})
    expected = {
        (CHAT, ""): openai_body,
        (CHAT, "?stream=all"): openai_stream,
        (MESSAGES, ""): anthropic_body,
        (MESSAGES, "?stream=all"): anthropic_stream,
    }[path, query](CALLS)
    assert response.content == expected
    check_turn(predictor.wait_for(2), "s", "TOOL")
    assert stack.seen.headers == [["s"]]
    assert stack.count("tool_calls") == 2
    assert stack.count("turns", outcome="tool") == 1
    assert stack.count("events", kind="turn_ended") == 1


def test_turns_of_a_session_follow_each_other_in_order(stack, predictor):
    for _ in range(50):
        post(stack, CHAT + "?stream=all", json={})
    events = predictor.wait_for(100)
    assert [e.WhichOneof("kind") for e in events] == ["turn_started", "turn_ended"] * 50
    assert len({e.turn for e in events}) == 50


def test_the_session_reaches_the_application_in_the_header(stack, predictor):
    uuid = "0b5e9c1a-2f3d-4c5b-8a7e-1234567890ab"
    body = {"metadata": {"user_id": f"user_x_session_{uuid}"}}
    post(stack, MESSAGES, None, json=body, headers={"x-claude-code-agent-id": "a1"})
    post(stack, MESSAGES, None, json={"session_id": "b"})
    post(stack, CHAT, "h", json={"session_id": "b"})
    post(stack, CHAT, None, json={})
    assert stack.seen.headers == [[f"{uuid}/a1"], ["b"], ["b"], []]
    names = [hash_session(name, "k") for name in (f"{uuid}/a1", "b", "b")]
    assert [event.session for event in predictor.wait_for(6)[::2]] == names
    assert stack.count("anonymous_requests") == 1


def test_other_paths_and_methods_pass_untouched(stack, predictor):
    assert post(stack, "/other", json={}).content == anthropic_body(CALLS)
    assert stack.client.get(CHAT, headers={"x-session-id": "s"}).status_code == 405
    assert post(stack, "/nowhere", json={}).status_code == 404
    time.sleep(0.2)
    assert not predictor.events


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"session_id": "\xff"}',
        b'{"a":' * 100_000,
        gzip.compress(b'{"session_id": "s"}'),
        b'{"a": "' + b"x" * 10_000_000,
    ],
    ids=["empty", "open", "list", "utf8", "deep", "gzip", "10MB"],
)
def test_a_malformed_request_body_is_passed_on_and_counted(stack, predictor, body):
    response = post(stack, CHAT, content=body)
    assert response.status_code == 200
    assert stack.seen.bodies == [body]
    assert stack.count("unparsed_bodies", where="request") == 1
    check_turn(predictor.wait_for(2), "s", "TOOL")
    assert stack.count("middleware_failures") == 0


def test_a_chunked_body_of_10_mb_arrives_whole_and_names_its_session(stack, predictor):
    body = json.dumps({"messages": ["wort " * 2_000_000], "session_id": "late"}).encode()
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    assert post(stack, CHAT, None, content=pieces).status_code == 200
    assert stack.seen.bodies == [body]
    check_turn(predictor.wait_for(2), "late", "TOOL")


def test_a_huge_header_is_no_error_of_ours(stack, predictor):
    huge = "s" * 50_000
    assert post(stack, CHAT, huge, json={}).status_code == 200
    (name,) = stack.seen.headers[0]
    assert len(name) == 32
    check_turn(predictor.wait_for(2), name, "TOOL")


def test_a_response_that_cannot_be_read_is_passed_on_and_counted(stack, predictor):
    response = post(stack, CHAT + "?gzip=1", json={})
    assert response.content == openai_body(CALLS)
    check_turn(predictor.wait_for(2), "s", "UNSPECIFIED", [])
    assert stack.count("unparsed_bodies", where="response") == 1


@pytest.mark.parametrize("status", [400, 429, 503])
def test_an_error_response_is_an_aborted_turn(stack, predictor, status):
    assert post(stack, f"{CHAT}?status={status}", json={}).status_code == status
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("unparsed_bodies", where="response") == 0


def test_a_request_that_is_refused_unread_is_no_turn(stack, predictor):
    assert post(stack, CHAT + "?refuse=1", json={}).status_code == 401
    time.sleep(0.2)
    assert not predictor.events


def test_a_client_that_leaves_in_mid_stream_is_an_aborted_turn(stack, predictor):
    with stack.client.stream(
        "POST", CHAT + "?stream=hang", json={}, headers={"x-session-id": "s"}
    ) as response:
        next(response.iter_raw())
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("turns", outcome="aborted") == 1


def test_an_application_that_fails_in_mid_stream_is_an_aborted_turn(stack, predictor):
    with pytest.raises(httpx.RemoteProtocolError):
        post(stack, CHAT + "?stream=fail", json={})
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("middleware_failures") == 0


def test_parallel_sessions_do_not_mix(stack, predictor):
    async def run():
        async with httpx.AsyncClient(base_url=stack.client.base_url, timeout=30) as client:
            await asyncio.gather(
                *(
                    client.post(CHAT + "?stream=all", json={}, headers={"x-session-id": f"s{n}"})
                    for n in range(40)
                )
            )

    asyncio.run(run())
    by_turn: dict[str, list] = {}
    for event in predictor.wait_for(80):
        by_turn.setdefault(event.turn, []).append(event)
    assert sorted(events[0].session for events in by_turn.values()) == sorted(
        hash_session(f"s{n}", "k") for n in range(40)
    )
    for events in by_turn.values():
        assert events[0].session == events[1].session
        assert len(events[1].turn_ended.tool_calls) == 2


def test_a_predictor_that_dies_and_comes_back_costs_no_request(predictor):
    second = RecordingPredictor()
    with ExitStack() as first_life, ExitStack() as server:
        address = first_life.enter_context(serve(predictor))
        stack = Stack(address)
        url = server.enter_context(running(stack.app))
        stack.client = server.enter_context(httpx.Client(base_url=url, timeout=30))
        post(stack, CHAT, json={})
        predictor.wait_for(2)
        first_life.close()
        before = time.monotonic()
        assert all(post(stack, CHAT, json={}).status_code == 200 for _ in range(20))
        assert time.monotonic() - before < 5
        with serve(second, address):
            post(stack, CHAT, json={})
            assert len({event.turn for event in second.wait_for(42)}) == 21


def test_without_a_predictor_the_session_is_named_all_the_same():
    stack = Stack("")
    with running(stack.app) as url, httpx.Client(base_url=url, timeout=30) as client:
        stack.client = client
        assert post(stack, CHAT, json={"session_id": "b"}).content == openai_body(CALLS)
    assert stack.seen.headers == [["b"]]
    assert stack.count("turns", outcome="tool") == 1


def test_stopping_the_server_sends_the_events_that_wait(predictor):
    with serve(predictor) as address:
        stack = Stack(address)
        with running(stack.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            stack.client = client
            post(stack, CHAT, json={})
        assert len(predictor.events) == 2


async def test_a_bad_setting_stops_the_start_up_with_its_name():
    stack = Stack("")
    stack.app.state.vllm_config.additional_config = {"cachewise": {"predictr": "x"}}
    sent = []

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message)

    await stack.app({"type": "lifespan"}, receive, send)
    (message,) = sent
    assert message["type"] == "lifespan.startup.failed"
    assert "'predictr'" in message["message"]


def test_uvicorn_does_not_start_with_a_bad_setting(monkeypatch):
    monkeypatch.setenv("CACHEWISE_EVENT_QUEUE_SIZE", "many")
    server = uvicorn.Server(uvicorn.Config(Stack("").app, port=0, log_level="critical"))
    with pytest.raises(SystemExit):
        server.run()
