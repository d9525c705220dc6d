from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cachewise_bench.agents import Request, Server, run_agents
from cachewise_bench.script import Script, Step

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 64},
}
CALL = {"index": 0, "id": "c", "function": {"name": "Bash", "arguments": "{}"}}


def script(name: str, turns: int, calls_tool: bool = True) -> Script:
    step = Step(({"role": "user", "content": "hi"},), {}, 100, 20, calls_tool, 0.01)
    return Script(name, (step,) * turns)


class ChatServer:
    """Answers every request with one tool call, whole or streamed, and remembers what it got."""

    def __init__(self, status: int = 200, cut_stream: bool = False) -> None:
        self.status, self.cut_stream = status, cut_stream
        self.seen: list[tuple[str, dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append((request.headers["X-Session-ID"], body))
        if self.status != 200:
            return web.Response(status=self.status, text="too much")
        if not body["stream"]:
            message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
            return web.json_response({"choices": [{"message": message}], "usage": USAGE})
        response = web.StreamResponse()
        await response.prepare(request)
        events = [{"choices": [{"delta": {"tool_calls": [CALL]}}]}] * 3
        events += [] if self.cut_stream else [{"choices": [], "usage": USAGE}]
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


async def run(server: ChatServer, *scripts: Script) -> list[Request]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    async with TestServer(app) as http:
        url = str(http.make_url("")).rstrip("/")
        return await run_agents(Server(url, "m", 10.0), scripts, lambda _: None)


async def test_whole_and_streamed_answers_give_the_same_figures() -> None:
    whole, streamed = await run(ChatServer(), script("a", 1), script("b", 1))
    for request in (whole, streamed):
        assert request.error == ""
        assert (request.prompt_tokens, request.cached_tokens, request.output_tokens) == (100, 64, 7)
        assert request.tool_calls == 1
    assert whole.first_token_s is None and streamed.first_token_s is not None


async def test_a_sessions_requests_come_one_after_the_other_under_its_name() -> None:
    server = ChatServer()
    requests = await run(server, script("a", 3), script("b", 2))
    assert [(r.session, r.turn) for r in requests] == [
        ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1),
    ]  # fmt: skip
    assert sorted(name for name, _ in server.seen) == ["a", "a", "a", "b", "b"]
    for before, after in ((requests[0], requests[1]), (requests[1], requests[2])):
        assert after.started_s >= before.started_s + before.latency_s + 0.01


@pytest.mark.parametrize(
    ("server", "calls_tool", "reason"),
    [
        (ChatServer(status=500), True, "HTTP 500: too much"),
        (ChatServer(), False, "1 tool calls where 0 was asked"),
        (ChatServer(cut_stream=True), True, "the stream ended without usage"),
    ],
)
async def test_a_failure_is_noted_and_the_session_goes_on(
    server: ChatServer, calls_tool: bool, reason: str
) -> None:
    requests = await run(server, script("a", 2), script("b", 2, calls_tool))
    assert len(requests) == 4
    assert requests[3].error == reason


async def test_a_server_that_is_not_there_fails_requests_and_raises_nothing() -> None:
    (request,) = await run_agents(Server("http://127.0.0.1:1", "m", 5.0), [script("a", 1)], print)
    assert request.error.startswith("ClientConnectorError")
