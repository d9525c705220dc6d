"""middleware.py from start-up to shutdown: settings, and a predictor that is there or not."""

from __future__ import annotations

import time
from contextlib import ExitStack

import httpx
import pytest
import uvicorn

from .middleware_stack import CALLS, CHAT, Stack, post, running
from .recording_predictor import RecordingPredictor, serve
from .responses import openai_body


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
