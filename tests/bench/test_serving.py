"""The load of the serving benchmark: on time, whatever the server does; and a small run of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.serving import command, phases
from cachewise_bench.serving.load import EventLoad, at_rate
from cachewise_bench.serving.workload import tool_waits, write_traces
from cachewise_predictor.report import ReadReport
from cachewise_predictor.traces import read_trace


async def test_a_stall_delays_the_requests_that_were_due_meanwhile() -> None:
    sent = 0
    stalled = asyncio.Event()

    async def send() -> None:
        nonlocal sent
        sent += 1
        if sent == 20:
            stalled.set()
        await stalled.wait()

    latencies = await at_rate(200.0, lambda elapsed_s: sent >= 25, send)
    assert sent == len(latencies.seconds) >= 25
    pairs = sorted(zip(latencies.due_s, latencies.seconds, strict=True))
    by_due = [seconds for _, seconds in pairs]
    assert by_due[0] >= 19 / 200 and by_due[0] > by_due[10] > by_due[18]


async def test_sessions_end_a_turn_and_start_the_next() -> None:
    load = EventLoad(None, tool_waits(None, 10), ["a", "b"], batch=1)
    events = [load._make(number) for number in range(6)]
    assert [(e.session, e.turn, e.WhichOneof("kind")) for e in events] == [
        ("a", "0", "turn_ended"),
        ("b", "0", "turn_ended"),
        ("a", "1", "turn_started"),
        ("b", "1", "turn_started"),
        ("a", "1", "turn_ended"),
        ("b", "1", "turn_ended"),
    ]


def test_synthetic_waits_are_written_and_read_back(tmp_path: Path) -> None:
    waits = tool_waits(None, 1_000)
    write_traces(waits, tmp_path / "a.jsonl")
    again = list(read_trace(tmp_path / "a.jsonl", "t", ReadReport(), lambda size: None))
    assert [w.calls for w in waits] == [w.calls for w in again]
    assert len({(w.key, w.turn) for w in again}) == 1_000


@pytest.mark.parametrize(
    ("lags", "grows"), [([5] * 20, False), (list(range(0, 4_000, 200)), True), ([900, 0], False)]
)
def test_a_growing_lag_is_told_from_a_steady_one(lags: list[int], grows: bool) -> None:
    assert phases.is_growing(lags) == grows


@pytest.mark.timeout(300)
def test_a_small_run_measures_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TRAINED_INTERVALS", 300)
    monkeypatch.setattr(phases, "EVENTS_PER_S", 60)
    monkeypatch.setattr(phases, "REQUESTS_PER_S", 5)
    monkeypatch.setattr(phases, "REPORTING_SESSIONS", 30)
    out = tmp_path / "out.json"
    assert main(["serving", "--seconds", "3", "--json", str(out)]) in (0, 1)
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["forecasts"]["requests"] >= 10 and result["forecasts"]["failed"] == 0
    assert result["events"]["requests"] > 0 and result["events"]["failed"] == 0
    assert result["events"]["lag_intervals"] and result["training"]["cpu_s"] > 0
    assert result["training"]["trainings"] >= 1
    assert result["peak_mb"]["predictor"] > 10
