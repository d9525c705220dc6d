"""middleware.py at the level of ASGI: every message passes unchanged, whatever fails."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from cachewise_engine_hook import middleware, turn
from cachewise_engine_hook.middleware import SessionMiddleware
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from .middleware_stack import CALLS, CHAT, MESSAGES
from .responses import anthropic_body, anthropic_stream, openai_body, openai_stream


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
