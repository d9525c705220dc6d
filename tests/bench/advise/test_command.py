from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.replay_runs import Plan

from tests.bench.small_traces import write_traces

SMALL_HARDWARE = """
name = "a small card"
kv_bytes_per_token = 131072
pool_blocks = {blocks}
block_size = 16
step_tokens = [1, 512]
step_ms = [10.0, 40.0]
decode_ms_per_context_token = 1e-4
prefill_ms_per_token_and_context_token = 1e-6
host_ms = 1.0
"""
LEVERS = ["vllm", "ours-order", "ours-no-forecast", "ours"]


def advised(folder: Path, blocks: int, *options: str) -> dict[str, Any]:
    """What the command wrote about twelve sessions of up to 5,000 tokens."""
    hardware, figures = folder / "card.toml", folder / "advice.json"
    hardware.write_text(SMALL_HARDWARE.format(blocks=blocks))
    traces = write_traces(folder / "traces.jsonl", sessions=12, turns=8, first=1_200, growth=500)
    given = ["--traces", str(traces), "--hardware", str(hardware), "--json", str(figures)]
    assert main(["advise", *given, *options]) == 0
    result: dict[str, Any] = json.loads(figures.read_text())
    return result


def test_leave_it_off_where_all_contexts_fit(
    tmp_path: Path, replays_in_this_process: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    result = advised(tmp_path, 10_000, "--sessions=2,4")
    assert result["fits_up_to"] == 4 and result["pays_at"] == []
    assert capsys.readouterr().out.startswith("Leave it off: the contexts of 4 sessions at once")


def test_it_says_where_the_pool_thrashes_and_what_each_lever_brings(
    tmp_path: Path, replays_in_this_process: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "advice.svg"
    result = advised(tmp_path, 420, "--sessions=1,10", "--chunk=512", "--plot", str(plot))
    assert (result["fits_up_to"], result["thrashes_from"]) == (1, 10)
    assert result["figures"]["10"].keys() == {"stock", "order", "active_set", "forecasts"}
    out = " ".join(capsys.readouterr().out.split())
    assert "From 10 sessions at once on the pool thrashes" in out
    assert "With 10 sessions at once a session takes stock vLLM" in out
    assert plot.stat().st_size > 0
    assert [(len(p.sessions), p.policy) for p in replays_in_this_process] == [
        (count, policy) for count in (1, 10) for policy in LEVERS
    ]


def test_there_are_no_more_sessions_at_once_than_in_the_traces(
    tmp_path: Path, replays_in_this_process: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    advised(tmp_path, 10_000, "--sessions=5,20,40")
    assert {len(plan.sessions) for plan in replays_in_this_process} == {5, 12}
    assert "the traces have 12 usable sessions" in capsys.readouterr().err
    names = [session.name for session in replays_in_this_process[-1].sessions]
    assert len(set(names)) == 12


def test_forecasts_are_learned_from_sessions_that_are_not_replayed(
    tmp_path: Path, replays_in_this_process: list[Plan]
) -> None:
    advised(tmp_path, 10_000, "--sessions=2,4")
    for plan in replays_in_this_process:
        trained = {session.name for session in plan.training}
        assert len(trained) == 8
        assert not trained & {session.name for session in plan.sessions}


def test_host_memory_is_tried_where_it_is_given(
    tmp_path: Path, replays_in_this_process: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    advised(tmp_path, 420, "--sessions=6", "--offload-gib=2")
    offloads = [(plan.policy, plan.offload_gib) for plan in replays_in_this_process]
    assert offloads == [*((name, 0.0) for name in LEVERS), ("vllm", 2.0), ("ours", 2.0)]
    assert "host memory for evicted blocks: stock vLLM with host memory" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hardware=tpu"], "no hardware 'tpu'"),
        (["--traces=/nowhere"], "/nowhere: no such file or folder"),
        (["--human=never"], "--human is cut, keep or cap:SECONDS, not 'never'"),
        (["--json=/nowhere/x.json"], "--json /nowhere/x.json: there is no such folder"),
        (["--context-cap=5"], "give a larger --context-cap"),
    ],
)
def test_options_that_cannot_be_met_are_an_error(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = write_traces(tmp_path / "traces.jsonl", sessions=2)
    assert main(["advise", "--traces", str(traces), "--hardware=l40s-8b", *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
