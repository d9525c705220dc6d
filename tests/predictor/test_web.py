"""The HTTP side over a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from cachewise_predictor.config import Address
from cachewise_predictor.errors import ConfigError
from cachewise_predictor.model import Model
from cachewise_predictor.service import Predictor
from cachewise_predictor.web import Status, WebServer, make_app

from .conftest import ended, interval


class Store:
    is_up = True


@pytest.fixture
def status() -> Status:
    return Status(is_serving=True)


@pytest.fixture
def store_state() -> Store:
    return Store()


@pytest.fixture
async def client(
    predictor: Predictor, status: Status, store_state: Store
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(predictor, status, lambda: store_state.is_up)
    server = WebServer(app, Address("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.stop()
    await task


async def test_ready_says_how_it_serves(
    client: httpx.AsyncClient, status: Status, store_state: Store
) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    ready = {"status": "ready", "store": "up", "model": "prior"}
    assert (await client.get("/readyz")).json() == ready
    store_state.is_up = False
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {**ready, "store": "down"})
    status.is_serving = False
    assert (await client.get("/readyz")).status_code == 503


async def test_metrics_have_all_promised_names(
    client: httpx.AsyncClient, predictor: Predictor
) -> None:
    predictor.report([ended("t0")])
    text = (await client.get("/metrics")).text
    for name in (
        'events_total{kind="turn_ended"} 1.0',
        "rejected_events_total",
        "duplicate_events_total",
        "tool_calls_total 1.0",
        "dropped_tool_calls_total 0.0",
        "cut_arguments_total 0.0",
        'intervals_total{end="finished"} 0.0',
        'intervals_total{end="censored"}',
        "open_intervals 1.0",
        "wait_seconds_bucket",
        'forecasts_total{source="prior"} 1.0',
        "forecasts_sent_total",
        "forecast_p50_seconds_bucket",
        "watchers",
        "store_up",
        "model_samples",
    ):
        assert f"\ncachewise_predictor_{name}" in text


async def test_the_model_is_shown_as_json_and_as_a_page(
    client: httpx.AsyncClient, predictor: Predictor
) -> None:
    assert (await client.get("/v1/model")).json() == {
        "version": "prior",
        "samples": 0,
        "groups": [],
    }
    predictor.model = Model().learn([interval(3.0, "<script>")] * 40 + [interval(2.0, "Read")])
    answer = (await client.get("/v1/model")).json()
    assert (answer["version"], answer["samples"]) == (predictor.model.version, 41)
    rows = {(g["tenant"], g["tool"]): g for g in answer["groups"]}
    assert rows["acme", "<script>"]["n"] == 40
    assert rows["acme", "<script>"]["p50_s"] == pytest.approx(3, rel=0.5)
    assert rows[None, None]["n"] == 41
    page = (await client.get("/")).text
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


async def test_a_port_in_use_is_named(client: httpx.AsyncClient, predictor: Predictor) -> None:
    port = client.base_url.port
    assert port is not None
    with pytest.raises(ConfigError, match=f"--http.*:{port}"):
        WebServer(make_app(predictor, Status(), lambda: True), Address("127.0.0.1", port))
