"""The agents: closed loops over HTTP. Each sends a session's requests one after the other, waits as
the tool did, and notes what came back. They know nothing of policies, and work with any server that
speaks OpenAI's chat completions.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cachewise_bench.script import Script, Step

STAGGER_S = 0.25
"""Session i starts i times this after the first."""


@dataclass(frozen=True)
class Request:
    """What one request took and gave. Times are seconds."""

    session: str
    turn: int
    started_s: float
    """Since the run's start."""
    latency_s: float
    prompt_tokens: int = 0
    cached_tokens: int | None = 0
    """None: the server did not say."""
    output_tokens: int = 0
    tool_calls: int = 0
    first_token_s: float | None = None
    """From the request to the first token; known for streamed answers only."""
    error: str = ""
    """Why the request failed; empty if it did not."""


@dataclass(frozen=True)
class Server:
    """Where the agents send their requests."""

    base_url: str
    model: str
    request_timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""


async def run_agents(
    server: Server, scripts: Sequence[Script], on_request: Callable[[Request], None]
) -> list[Request]:
    """Runs all sessions to their ends; every second one reads its answers as streams."""
    timeout = aiohttp.ClientTimeout(total=server.request_timeout_s)
    # A connection per request: a server closes those that are idle for some seconds, like agents.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    begin = time.monotonic()
    async with aiohttp.ClientSession(
        server.base_url, headers=server.headers, timeout=timeout, connector=connector
    ) as http:
        agents = [
            _Agent(http, server.model, script, streams=i % 2 == 1, begin=begin)
            for i, script in enumerate(scripts)
        ]
        runs = [agent.run(i * STAGGER_S, on_request) for i, agent in enumerate(agents)]
        return [request for requests in await asyncio.gather(*runs) for request in requests]


@dataclass(frozen=True)
class _Agent:
    http: aiohttp.ClientSession
    model: str
    script: Script
    streams: bool
    begin: float

    async def run(self, delay_s: float, on_request: Callable[[Request], None]) -> list[Request]:
        await asyncio.sleep(delay_s)
        requests = []
        for turn, step in enumerate(self.script.steps):
            requests.append(await self._send(turn, step))
            on_request(requests[-1])
            if turn + 1 < len(self.script.steps):
                await asyncio.sleep(step.wait_s)
        return requests

    async def _send(self, turn: int, step: Step) -> Request:
        begin = time.monotonic()
        result: dict[str, Any] = {}
        try:
            headers = {"X-Session-ID": self.script.session}
            async with self.http.post(
                "/v1/chat/completions", json=self._body(step), headers=headers
            ) as response:
                if response.status != 200:
                    result["error"] = f"HTTP {response.status}: {(await response.text())[:300]}"
                elif self.streams:
                    result = await _read_stream(response, begin)
                else:
                    result = _read_whole(await response.json())
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            result["error"] = f"{type(error).__name__}: {error}"[:300]
        if not result.get("error") and (result["tool_calls"] > 0) != step.calls_tool:
            result["error"] = (
                f"{result['tool_calls']} tool calls where {step.calls_tool:d} was asked"
            )
        return Request(
            session=self.script.session,
            turn=turn,
            started_s=begin - self.begin,
            latency_s=time.monotonic() - begin,
            **result,
        )

    def _body(self, step: Step) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": step.messages,
            "max_tokens": step.max_tokens,
            "temperature": 0,
            "stream": self.streams,
            **step.constraints,
        }
        if self.streams:
            body["stream_options"] = {"include_usage": True}
        return body


def _read_whole(answer: dict[str, Any]) -> dict[str, Any]:
    """Request's fields from a whole response."""
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    return _usage(answer["usage"]) | {"tool_calls": len(calls)}


async def _read_stream(response: aiohttp.ClientResponse, begin: float) -> dict[str, Any]:
    """Request's fields from a streamed response."""
    first_token_s, usage = None, None
    calls: set[int] = set()
    async for event in _server_sent_events(response):
        if "error" in event:
            return {"error": f"in the stream: {event['error']}"[:300]}
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            found = delta.get("tool_calls") or []
            calls.update(call["index"] for call in found)
            if first_token_s is None and (found or delta.get("content")):
                first_token_s = time.monotonic() - begin
    if usage is None:
        return {"error": "the stream ended without usage"}
    return _usage(usage) | {"tool_calls": len(calls), "first_token_s": first_token_s}


async def _server_sent_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details") or {}
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "cached_tokens": details.get("cached_tokens"),
    }
