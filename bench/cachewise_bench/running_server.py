"""The engine bench against a server that already runs: nothing is started and nothing is stopped.

Its cache may hold what an earlier run left there, so every round sends other words, under other
session names. What it does not tell is not known: evictions without CacheWise's own counter in its
/metrics, hits without vLLM's --enable-prompt-tokens-details (then the share of hits of all its
traffic in the meantime is taken from vLLM's counters, if they are there).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from cachewise_bench.agents import Request, Server, run_agents
from cachewise_bench.engine import PolicyRun
from cachewise_bench.measure import PolicyResult, summarise
from cachewise_bench.script import Scales, Script, Tokenizer, write_scripts
from cachewise_bench.servers import ServerError
from cachewise_bench.watch import EngineSampler, EvictionCount, in_background, scrape
from cachewise_bench.workload import Session, WorkloadError

POLICY = "server"
"""What the results are called: the bench does not know the server's policy."""

KEY_VARIABLE = "OPENAI_API_KEY"
FIND_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RunningServer:
    """A server that answers."""

    base_url: str
    model: str
    max_model_len: int | None
    """None: the server does not say."""
    headers: Mapping[str, str] = field(default_factory=dict)


async def find(base_url: str, model_name: str | None, environ: Mapping[str, str]) -> RunningServer:
    """The server and its model; without a name the only one that it has.

    Raises WorkloadError for an unusable address, ServerError when nobody answers there, when it
    does not speak OpenAI's API, wants a key, or does not have the model.
    """
    url = _address(base_url)
    key = environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    models = {model["id"]: model for model in await _models(url, headers)}
    if model_name is None and len(models) == 1:
        model_name = next(iter(models))
    if model_name is None or model_name not in models:
        asked = f"not {model_name!r}" if model_name else "name one with --model-name"
        raise ServerError(f"{url} has the models {', '.join(models)}: {asked}")
    return RunningServer(url, model_name, models[model_name].get("max_model_len"), headers)


async def run_rounds(
    server: RunningServer,
    sessions: Sequence[Session],
    tokenizer: Tokenizer,
    scales: Scales,
    seed: int,
    rounds: int,
    request_timeout_s: float,
    on_request: Callable[[Request], None],
) -> list[list[PolicyRun]]:
    """One run per round. Raises WorkloadError when a session does not fit the server's context."""
    runs = []
    for _ in range(rounds):
        scripts = write_scripts(_renamed(sessions), tokenizer, scales, seed)
        _check_context(server, scripts, tokenizer)
        runs.append([await _run(server, scripts, request_timeout_s, on_request)])
    return runs


# ---- steps --------------------------------------------------------------------------------------


def _address(base_url: str) -> str:
    """http://host:port, from an address that may end in / or /v1."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise WorkloadError(f"--base-url must be http://HOST:PORT, not {base_url!r}")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise WorkloadError(f"--base-url {base_url}: leave the path out")
    return f"{parts.scheme}://{parts.netloc}"


async def _models(url: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    timeout = aiohttp.ClientTimeout(total=FIND_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.get(f"{url}/v1/models") as response,
        ):
            if response.status in (401, 403):
                raise ServerError(f"{url} wants a key: set {KEY_VARIABLE} in the environment")
            if response.status != 200:
                raise ServerError(
                    f"{url}/v1/models: HTTP {response.status}; is this a vLLM server?"
                )
            models: list[dict[str, Any]] = (await response.json())["data"]
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        raise ServerError(f"{url}: no answer ({str(error) or 'it took too long'})") from None
    except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{url}/v1/models: not what OpenAI's API gives ({error})") from None
    return models


def _renamed(sessions: Sequence[Session]) -> list[Session]:
    """The same under names that no run had before: the words of a script follow from them."""
    salt = secrets.token_hex(4)
    return [
        replace(session, name=f"{session.name}@{salt}", harness=f"{session.harness}@{salt}")
        for session in sessions
    ]


def _check_context(server: RunningServer, scripts: Sequence[Script], tokenizer: Tokenizer) -> None:
    for script in scripts if server.max_model_len else ():
        largest = max(script.steps, key=lambda step: step.prompt_tokens)
        tokens = tokenizer.count(largest.messages) + largest.max_tokens
        if tokens > (server.max_model_len or 0):
            name = script.session.partition("@")[0]
            raise WorkloadError(
                f"session {name} needs {tokens:,} tokens, and the server's context has "
                f"{server.max_model_len:,}: lower --token-scale or --context-cap"
            )


async def _run(
    server: RunningServer,
    scripts: Sequence[Script],
    request_timeout_s: float,
    on_request: Callable[[Request], None],
) -> PolicyRun:
    metrics_url = f"{server.base_url}/metrics"
    before = await scrape(metrics_url)
    sampler = EngineSampler(server.base_url, EvictionCount())
    address = Server(server.base_url, server.model, request_timeout_s, server.headers)
    async with in_background(sampler.sample()):
        requests = await run_agents(address, scripts, on_request)
    after = await scrape(metrics_url)
    result = _with_counters(summarise(requests, None, None, None), before or {}, after or {})
    return PolicyRun(POLICY, result, tuple(requests), tuple(sampler.samples))


def _with_counters(
    result: PolicyResult, before: Mapping[str, float], after: Mapping[str, float]
) -> PolicyResult:
    """The result with what the server's counters tell and its answers do not."""

    def since(name: str) -> float | None:
        return after[name] - before.get(name, 0.0) if name in after else None

    evicted = since("cachewise_evicted_blocks_total")
    hits, queries = since("vllm:prefix_cache_hits_total"), since("vllm:prefix_cache_queries_total")
    if evicted is not None:
        result = replace(result, evicted_blocks=round(evicted))
    if result.prefix_hit_rate is None and hits is not None and queries:
        result = replace(result, prefix_hit_rate=round(hits / queries, 4))
    return result
