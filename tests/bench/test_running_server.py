"""The engine bench against a server that it did not start: here one that answers as it is told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cachewise_bench.__main__ import main
from cachewise_bench.answers import tools_of
from cachewise_bench.running_server import POLICY, find, run_rounds
from cachewise_bench.script import Scales, Tokenizer
from cachewise_bench.servers import ServerError
from cachewise_bench.workload import Session, WorkloadError

from tests.bench.sample_turns import session, trace_line, turn

SCALES = Scales(tokens=0.02, time=0.01, max_wait_s=0.1)
SESSIONS = [
    session("a", 15_000, 17_000, 20_000),
    Session("b", (turn(15_000), turn(16_000, tools=0), turn(17_000))),
]


class ObedientServer:
    """Writes the text that is asked for, counts evictions, and remembers what it got."""

    def __init__(
        self, models: Sequence[str] = ("m",), tells_hits: bool = True, metrics: str | None = None
    ) -> None:
        self.models, self.tells_hits, self.metrics = models, tells_hits, metrics
        self.key: str | None = None
        self.max_model_len: int | None = 4_000
        self.bodies: list[dict[str, Any]] = []
        self.session_ids: set[str] = set()
        self.connections: list[Any] = []

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        data = [{"id": name, "max_model_len": self.max_model_len} for name in self.models]
        return web.json_response({"data": data})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        assert request.transport is not None
        self.connections.append(request.transport.get_extra_info("peername"))
        self.session_ids.add(request.headers["X-Session-ID"])
        (text,) = body["structured_outputs"]["choice"]
        usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 7}
        if self.tells_hits:
            usage["prompt_tokens_details"] = {"cached_tokens": 60}
        message = _parsed(text, body["tools"])
        if not body["stream"]:
            return web.json_response({"choices": [{"message": message}], "usage": usage})
        response = web.StreamResponse()
        await response.prepare(request)
        for event in ({"choices": [{"delta": message}]}, {"choices": [], "usage": usage}):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response

    async def show_metrics(self, _: web.Request) -> web.Response:
        if self.metrics is None:
            raise web.HTTPNotFound(text="<html>not here</html>")
        return web.Response(text=self.metrics.replace("COUNT", str(10 + len(self.bodies))))

    @asynccontextmanager
    async def at(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/metrics", self.show_metrics)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


def _parsed(text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """As vLLM's hermes parser reads it."""
    if not text.startswith("<tool_call>\n"):
        return {"role": "assistant", "content": text}
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    (tool,) = [t["function"] for t in tools if t["function"]["name"] == call["name"]]
    assert call["arguments"].keys() <= tool["parameters"]["properties"].keys()
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}


async def measured(server: ObedientServer, model: Path, rounds: int = 1) -> Any:
    """The figures of the last round."""
    async with server.at() as url:
        found = await find(url, None, {})
        tokenizer = Tokenizer(model, tools_of(SESSIONS))
        runs = await run_rounds(found, SESSIONS, tokenizer, SCALES, 0, rounds, 20.0, lambda _: None)
    return runs[-1][0]


async def test_all_requests_are_answered_and_what_is_not_told_is_not_known(
    tiny_model: Path,
) -> None:
    run = await measured(ObedientServer(tells_hits=False), tiny_model)
    assert [request.error for request in run.requests] == [""] * 6
    assert run.policy == POLICY and run.result.tool_calls_emitted == 3
    unknown = ("prefix_hit_rate", "evicted_blocks", "recomputed_tokens", "lost_events")
    assert [getattr(run.result, name) for name in unknown] == [None] * 4
    assert run.result.forecasts_delivered is None and run.samples == ()


async def test_no_request_goes_over_a_connection_that_the_server_may_be_closing(
    tiny_model: Path,
) -> None:
    server = ObedientServer()
    await measured(server, tiny_model)
    assert len(set(server.connections)) == len(server.connections) == len(server.bodies) > 0


async def test_hits_are_told_by_the_answers(tiny_model: Path) -> None:
    run = await measured(ObedientServer(), tiny_model)
    assert run.result.prefix_hit_rate == 0.6
    assert run.result.recomputed_tokens == 4 * 40


async def test_what_the_servers_metrics_tell_is_known(tiny_model: Path) -> None:
    metrics = (
        'cachewise_evicted_blocks_total{order="lru"} COUNT\n'
        "vllm:prefix_cache_hits_total COUNT\nvllm:prefix_cache_queries_total 20\n"
        "vllm:kv_cache_usage_perc 0.5\n"
    )
    run = await measured(ObedientServer(tells_hits=False, metrics=metrics), tiny_model)
    assert run.result.evicted_blocks == 6
    assert run.samples and run.samples[0].kv_usage == 0.5
    told = await measured(ObedientServer(metrics=metrics), tiny_model)
    assert told.result.prefix_hit_rate == 0.6


async def test_every_request_declares_the_same_tools_and_repeats_the_forced_answer(
    tiny_model: Path, tokenizer: Tokenizer
) -> None:
    server = ObedientServer()
    await measured(server, tiny_model)
    assert all(body["tools"] == server.bodies[0]["tools"] for body in server.bodies)
    assert all(body["tool_choice"] == "auto" for body in server.bodies)
    by_prompt = Counter(_rendered(tokenizer, body["messages"], True) for body in server.bodies)
    answered = [
        _rendered(tokenizer, body["messages"], True) + body["structured_outputs"]["choice"][0]
        for body in server.bodies
    ]
    continued = [text for text in answered if any(p.startswith(text) for p in by_prompt)]
    assert len(continued) == 4  # All but the last of each session.


def _rendered(tokenizer: Tokenizer, messages: list[Any], asks: bool) -> str:
    return tokenizer._render(messages, asks)


async def test_no_round_repeats_the_words_or_the_session_names_of_another(
    tiny_model: Path,
) -> None:
    server = ObedientServer()
    await measured(server, tiny_model, rounds=2)
    assert len(server.session_ids) == 4
    systems = Counter(body["messages"][0]["content"] for body in server.bodies)
    assert sorted(systems.values()) == [6, 6]
    sizes = [[len(json.dumps(b["messages"])) for b in half] for half in _halves(server.bodies)]
    assert sorted(sizes[0]) == pytest.approx(sorted(sizes[1]), rel=0.05)


def _halves(bodies: list[Any]) -> tuple[list[Any], list[Any]]:
    return bodies[:6], bodies[6:]


async def test_the_command_writes_null_and_shows_a_dash(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, result = tmp_path / "a.jsonl", tmp_path / "result.json"
    lines = [trace_line(turn=i, prompt_tokens=15_000 + 1_000 * i) for i in range(3)]
    traces.write_text("\n".join(lines))
    async with ObedientServer(models=("m", "other")).at() as url:
        options = ["--base-url", f"{url}/v1/", "--model-name", "other", "--model", str(tiny_model)]
        options += ["--traces", str(traces), "--sessions=2", "--token-scale=0.02"]
        options += ["--max-wait=0.1", "--json", str(result)]
        options += ["--report", str(tmp_path / "page.html")]
        assert await asyncio.to_thread(main, ["engine", *options]) == 0
    figures = json.loads(result.read_text())
    assert figures["server"]["evicted_blocks"] is None
    assert figures["server"]["requests"] == 6 and "ratio" not in figures
    assert figures["conditions"]["model_name"] == "other"
    assert "pool_fraction" not in figures["conditions"]
    evictions = [row for row in capsys.readouterr().out.splitlines() if "evicted blocks" in row]
    assert evictions[0].split("│")[2].strip() == "–"
    page = (tmp_path / "page.html").read_text()
    assert "Evictions</h2>" not in page and "Request latency</h2>" in page


# ---- what can be wrong ---------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ServerError, match="http://127.0.0.1:1: no answer"):
        await find("http://127.0.0.1:1", None, {})


@pytest.mark.parametrize(
    ("models", "name", "message"),
    [
        (("m", "n"), "x", "has the models m, n: not 'x'"),
        (("m", "n"), None, "has the models m, n: name one with --model-name"),
    ],
)
async def test_a_model_that_the_server_does_not_have_is_an_error(
    models: tuple[str, ...], name: str | None, message: str
) -> None:
    async with ObedientServer(models).at() as url:
        with pytest.raises(ServerError, match=message):
            await find(url, name, {})


async def test_a_key_is_taken_from_the_environment() -> None:
    server = ObedientServer()
    server.key = "secret"
    async with server.at() as url:
        with pytest.raises(ServerError, match="wants a key: set OPENAI_API_KEY"):
            await find(url, None, {})
        found = await find(url, None, {"OPENAI_API_KEY": "secret"})
    assert found.headers == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [(404, "", "HTTP 404"), (200, "<html>", "not what OpenAI's API gives"),
     (200, "{}", "not what OpenAI's API gives")],
)  # fmt: skip
async def test_a_server_that_does_not_speak_the_api_is_an_error(
    status: int, text: str, message: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server:
        with pytest.raises(ServerError, match=message):
            await find(str(server.make_url("")), None, {})


@pytest.mark.parametrize("url", ["gpu-1:8000", "ftp://gpu-1", "http://", "http://gpu-1/api"])
async def test_an_address_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(WorkloadError, match="--base-url"):
        await find(url, None, {})


async def test_a_session_that_is_longer_than_the_servers_context_is_named(
    tiny_model: Path,
) -> None:
    server = ObedientServer()
    server.max_model_len = 390
    with pytest.raises(WorkloadError, match=r"session a needs \d+ tokens, .* has 390: lower"):
        await measured(server, tiny_model)
    assert server.bodies == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model-name=m"], "--model-name is for a server that runs already: give --base-url"),
        (["--base-url=http://x"], "--base-url needs --model DIR"),
        (["--base-url=http://x", "--model=m", "--policy=stock"], "--policy is for servers that"),
        (["--base-url=http://x", "--model=m", "--pool-fraction=1"], "--pool-fraction is for"),
        (["--base-url=http://x", "--model=/nowhere"], "/nowhere: no model here"),
    ],
)
def test_options_that_contradict_each_other_are_an_error(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
