"""The main job, end to end: real vLLM servers, the predictor with its store, real HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Three short sessions on a pool that holds about one and a half of them.
SMALL = ("--sessions", "3", "--turns", "4", "--token-scale", "0.02", "--max-wait", "1")


def bench(folder: Path, *options: str) -> dict[str, Any]:
    """Runs cachewise-bench engine on synthetic sessions; gives its JSON file."""
    command = [sys.executable, "-m", "cachewise_bench", "engine", *SMALL, *options]
    result = folder / "demo.json"
    outputs = ("--json", str(result), "--report", str(folder / "demo.html"))
    done = subprocess.run(
        [*command, *outputs], cwd=folder, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_both_policies_serve_every_request_and_every_tool_call_becomes_a_forecast(
    tmp_path: Path,
) -> None:
    figures = bench(tmp_path)
    stock, ours = figures["stock"], figures["cachewise"]
    assert stock["requests"] == ours["requests"] == 12
    assert stock["failed_requests"] == ours["failed_requests"] == 0
    assert stock["tool_calls_emitted"] == ours["tool_calls_emitted"] > 0
    assert ours["tool_calls_reported"] == ours["tool_calls_emitted"]
    assert ours["forecasts_delivered"] >= ours["tool_calls_emitted"]
    assert stock["evicted_blocks"] > 0 and stock["lost_events"] == ours["lost_events"] == 0
    assert figures["ratio"].keys() >= {"session_time_mean_s", "evicted_blocks"}
    assert (tmp_path / "demo.html").read_text().count("<svg") == 5


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_no_request_fails_when_the_predictor_is_killed(tmp_path: Path) -> None:
    figures = bench(tmp_path, "--policy", "cachewise", "--kill-predictor-after", "2")
    ours = figures["cachewise"]
    assert (ours["requests"], ours["failed_requests"]) == (12, 0)
    assert ours["tool_calls_reported"] is None
