"""Input that nobody means well with: empty, huge, many, unprintable. Counted, bounded, no crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cachewise_predictor import model as model_module
from cachewise_predictor.events import Interval, SessionKey, ToolCall, Wait
from cachewise_predictor.insight import clusters, explain
from cachewise_predictor.model import MAX_KINDS_PER_TENANT, Group, Model
from cachewise_predictor.model_file import from_bytes, to_bytes
from cachewise_predictor.rpc import MAX_TOOL_CALLS, MAX_TOOL_NAME
from cachewise_predictor.service import Predictor
from cachewise_predictor.store import Store
from cachewise_predictor.train import TENANT, build, load_current, train
from cachewise_predictor.web import Status, make_app
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto.redaction import MAX_ARGUMENT_CHARS
from hypothesis import given
from hypothesis import strategies as st

from .conftest import KEY, sample
from .test_rpc import QUERY, channel, event, report, server, started, stub
from .test_train import turn, write

__all__ = ["channel", "server", "stub"]  # fixtures

ODD_TEXTS = [
    "",
    " ",
    "\x00",
    "\x00\x01\x1b[2J\x7f\x80\u2028\u202e\ufeff",
    "\n" * 1_000,
    "𐏿" * 1_000,
    "\\ud800\\u0000",
    '{"command": ""}',
    '{"command": "' + "\\" * 999,
    '{"timeout": 999999999999999999999999}',
    "x" * 1_000_000,
    '{"command": "' + "cd a && " * 120_000,
    "[" * 100_000,
    "password=" * 100_000,
]


def called(name: str, arguments: str, number: int = 0) -> pb.Event:
    calls = [pb.ToolCall(name=name, arguments=arguments)]
    kind = pb.TurnEnded(tool_calls=calls, outcome=pb.OUTCOME_TOOL)
    return event(turn=f"t{number}", turn_ended=kind)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
async def test_odd_arguments_and_names_are_forecast_learned_and_shown(
    stub: Any, predictor: Predictor, text: str
) -> None:
    for number, call in enumerate([("Bash", text), (text[:100_000], text), (text[:5], "")]):
        answer = await stub.ReportEvents(report(called(*call, number)))
        assert (answer.accepted, answer.rejected) == (1, 0)
        answer = await stub.ForecastReuse(pb.ForecastReuseRequest(queries=[QUERY]))
        assert answer.forecasts[0].HasField("forecast")
        await stub.ReportEvents(report(started(turn=f"u{number}")))
    waits = [i for entry in predictor.journal.take(9).values() for i in entry.intervals]
    assert len(waits) == 3
    for call in (call for wait in waits for call in wait.calls):
        assert call.name and len(call.name) <= MAX_TOOL_NAME
        assert len(call.arguments) <= MAX_ARGUMENT_CHARS
    predictor.model = from_bytes(to_bytes(build(waits * 40)))
    await assert_shown(predictor)
    assert sample(predictor, "events_total", kind="turn_ended") == 3
    is_full = [len(call.arguments) == MAX_ARGUMENT_CHARS for wait in waits for call in wait.calls]
    assert sample(predictor, "cut_arguments_total") == sum(is_full)


async def assert_shown(predictor: Predictor) -> None:
    """Every page and text about the model can be made."""
    app = make_app(predictor, Status(is_serving=True), lambda: True)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://predictor") as client:
        for path in ("/", "/v1/model", "/metrics", "/readyz"):
            assert (await client.get(path)).status_code == 200
    assert clusters(predictor.model)
    for group in predictor.model.rows:
        text = explain(predictor.model, group.tenant or "", group.kind or "", group.part or "")
        assert text.replace("\n", "").isprintable()


async def test_calls_without_a_name_and_beyond_the_bound_are_left_out(
    stub: Any, predictor: Predictor
) -> None:
    calls = [pb.ToolCall(name=name) for name in ("", *(f"tool {n}" for n in range(10_000)))]
    kind = pb.TurnEnded(tool_calls=calls, outcome=pb.OUTCOME_TOOL)
    await stub.ReportEvents(report(event(turn_ended=kind)))
    assert sample(predictor, "tool_calls_total") == MAX_TOOL_CALLS - 1
    assert sample(predictor, "dropped_tool_calls_total") == 10_001 - (MAX_TOOL_CALLS - 1)
    assert predictor.forecast(KEY).forecast is not None


def named(number: int) -> Interval:
    """A wait for a tool of its own name."""
    call = ToolCall(f"tool {number}", json.dumps({"command": f"run{number} {number}"}))
    return Interval(SessionKey("acme", "s"), f"t{number}", Wait.TOOL, (call,), 5.0, True)


def test_100_000_tool_names_take_the_room_of_a_few_hundred() -> None:
    waits = [named(0)] + [replace(named(0), calls=(ToolCall(f"{n}"),)) for n in range(1, 100_000)]
    model = Model().learn(waits[:10_000])
    rows = len(model.rows)
    model = model.learn(waits[10_000:])
    kinds = [group for group in model.rows if group.kind is not None and group.part is None]
    assert len(kinds) == MAX_KINDS_PER_TENANT and len(model.rows) == rows
    assert model.samples == model.row(Group("acme", Wait.TOOL)).samples == 100_000
    assert len(to_bytes(model)) < 1_000_000


def test_remembered_forecasts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "_MAX_REMEMBERED", 100)
    model = Model().learn(map(named, range(300)))
    for number in range(1_000):
        model.forecast("acme", Wait.TOOL, named(number).calls)
        assert len(model._forecasts) <= 100 and len(model._levels) <= 100


@pytest.mark.parametrize("distinct", [1, 2, 3, 7])
def test_fewer_distinct_arguments_than_clusters(distinct: int) -> None:
    words = ("git push", "cargo test", "npm install", "make", "ls", "", "pytest")
    calls = [ToolCall("Bash", words[n % distinct]) for n in range(300)]
    waits = [
        Interval(SessionKey("acme", "s"), f"t{n}", Wait.TOOL, (call,), 1.0 + n % distinct, True)
        for n, call in enumerate(calls)
    ]
    model = build(waits)
    assert sum(len(found.centroids) for found in model.clusters.values()) <= distinct
    assert model.samples == 300
    assert model.forecast("acme", Wait.TOOL, (calls[0],)).sample_count > 0


async def test_lone_surrogates_and_bytes_that_are_no_text_in_a_trace(
    tmp_path: Path, store: Store, predictor: Predictor
) -> None:
    """JSON can escape what UTF-8 cannot hold."""
    odd = "\ud800 \udfff \x00 \x1b[31m"
    tool = {"name": odd, "args": {"command": f"make {odd}"}, "dur": 1, "dur_q": "measured"}
    lines: list[object] = [turn(session=odd, tools=[tool], turn=n) for n in range(90)]
    path = write(tmp_path / "a.jsonl", [*lines, '{"session": "\udcff\udcfe"}'])
    summary = await train([path], store)
    assert "90 waits" in summary and "broken lines: 1" in summary
    summary.encode()
    predictor.model = await load_current(store)
    assert predictor.model.row(Group(TENANT, Wait.TOOL)).samples == 90
    await assert_shown(predictor)


@given(name=st.text(max_size=50), arguments=st.text(max_size=200), seconds=st.floats(0, 1e9))
def test_any_call_can_be_learned_stored_and_forecast(
    name: str, arguments: str, seconds: float
) -> None:
    call = ToolCall(name, arguments)
    wait = Interval(SessionKey("acme", name), "t", Wait.TOOL, (call,), seconds, True)
    model = from_bytes(to_bytes(build([wait] * 40)))
    forecast = model.forecast("acme", Wait.TOOL, (call,))
    assert model.samples == 40 and forecast.sample_count >= 40
    assert all(remaining >= 0 for remaining in forecast.remaining_s)
    assert explain(model, "acme", name, arguments).replace("\n", "").isprintable()
