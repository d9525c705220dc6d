from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.cost_model import Hardware
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.replay_command import PRESETS
from cachewise_bench.replay_runs import Plan, replay_one
from cachewise_bench.replay_table import table
from rich.console import Console

from tests.bench.sample_turns import trace_line
from tests.bench.test_scores import KEYS

VARYING = {"scheduler_cpu_us_per_step", "real_s"}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Ten sessions of four short turns; a person answers after the third."""
    file = tmp_path / "traces.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        for session in range(10):
            for turn in range(4):
                line = trace_line(
                    session=f"s{session}",
                    turn=turn,
                    prompt_tokens=800 + 300 * turn + session,
                    output_tokens=20,
                    reuse_s=200.0 if turn == 2 else 0.3 * session,
                    next="human" if turn == 2 else "tool",
                )
                lines.write(line + "\n")
    return file


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Replays without starting processes; the plans that were made."""
    made: list[Plan] = []

    def replay_all(plans: Sequence[Plan], *_: object) -> list[dict[str, Any]]:
        made.extend(plans)
        return [replay_one(plan, i, {}) for i, plan in enumerate(plans)]

    monkeypatch.setattr("cachewise_bench.replay_command.replay_all", replay_all)
    return made


def _rows(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    file = tmp_path / "rows.json"
    assert main(["replay", *options, "--json", str(file)]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in VARYING} for row in rows]


def test_the_same_arguments_give_the_same_json(
    traces: Path, tmp_path: Path, in_this_process: list[Plan]
) -> None:
    options = ["--traces", str(traces), "--preset", "paper", "--sessions", "1,2", "--seed", "0,1"]
    options += ["--policy", "vllm", "--policy", "ours"]
    first, second = _rows(tmp_path, *options), _rows(tmp_path, *options)
    assert _without_times(first) == _without_times(second)
    assert [(r["seed"], r["sessions"], r["policy"]) for r in first] == [
        (seed, n, policy) for seed in (0, 1) for n in (1, 2) for policy in ("vllm", "ours")
    ]
    assert all(list(row) == KEYS for row in first)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_on_most_sessions_and_replays_the_others(
    preset: str, traces: Path, tmp_path: Path, in_this_process: list[Plan]
) -> None:
    _rows(tmp_path, "--traces", str(traces), "--preset", preset, "--sessions", "2", "--policy=vllm")
    (plan,) = in_this_process
    trained = {session.name for session in plan.training}
    assert len(trained) == 8
    assert not trained & {session.name for session in plan.sessions}
    assert plan.chunk == 512


@pytest.mark.parametrize("name", ["l40s-8b", "paper", "h200x2-qwen32b"])
def test_hardware_has_a_name_or_its_presets(
    name: str, traces: Path, tmp_path: Path, in_this_process: list[Plan]
) -> None:
    _rows(tmp_path, "--traces", str(traces), "--hardware", name, "--sessions=1", "--policy=vllm")
    assert in_this_process[0].hardware == Hardware.load(PRESETS.get(name, name))


def test_human_pauses_are_cut_capped_or_kept(
    traces: Path, tmp_path: Path, in_this_process: list[Plan]
) -> None:
    for rule in ("cut", "cap:90", "keep"):
        _rows(tmp_path, "--traces", str(traces), "--sessions=1", "--policy=vllm", "--human", rule)
    waits = [plan.sessions[0].turns[2].wait_s for plan in in_this_process]
    assert waits == [0.5, 90.0, 200.0]


def test_host_memory_is_for_all_policies_and_named_in_the_figures(
    traces: Path, tmp_path: Path, in_this_process: list[Plan]
) -> None:
    options = ["--traces", str(traces), "--sessions=2", "--policy=vllm", "--offload-gib=1.5"]
    (row,) = _rows(tmp_path, *options)
    assert list(row) == [*KEYS, "offload_gib", "loaded_blocks"]
    assert row["offload_gib"] == 1.5


def _row(policy: str, sessions: int) -> dict[str, Any]:
    numbers = {key: 1_234.5678 for key in KEYS} | {"evicted_blocks": 12_345_678, "seed": 0}
    return numbers | {"policy": policy, "sessions": sessions}


def test_the_table_fits_into_100_columns() -> None:
    rows = [_row(policy, sessions) for sessions in (5, 80) for policy in POLICIES]
    text = _printed(rows)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert all(text.count(f" {policy} ") >= 2 for policy in POLICIES)


def test_each_row_is_compared_with_the_first_policy_at_the_same_number_of_sessions() -> None:
    rows = [_row(policy, n) for n in (10, 20) for policy in ("vllm", "ours")]
    for row, mean in zip(rows, (100.0, 80.0, 300.0, 120.0), strict=True):
        row["session_time_mean_s"] = mean
    lines = [line.split() for line in _printed(rows).splitlines()]
    ratios = [line[4] for line in lines if line[:1] in (["vllm"], ["ours"])]
    assert ratios == ["1.00", "1.25", "1.00", "2.50"]


def _printed(rows: list[dict[str, Any]]) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(table(rows))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy=fifo"], "no policy 'fifo'; there are vllm, "),
        (["--policy=vllm", "--human=never"], "--human is cut, keep or cap:SECONDS, not 'never'"),
        (["--policy=vllm", "--human=cap:-1"], "--human is cut, keep or cap:SECONDS, not 'cap:-1'"),
        (["--policy=vllm", "--hardware=tpu"], "no hardware 'tpu'"),
        (["--policy=vllm", "--preset=paper", "--train=x"], "leave --train out"),
        (["--policy=vllm", "--preset=paper", "--hardware=l40s-8b"], "leave --hardware out"),
        (["--policy=vllm", "--preset=l40s-8b", "--chunk=2048"], "leave --chunk out"),
        (["--policy=vllm", "--offload-gib=1e-6"], "--offload-gib 1e-06: no block fits into it"),
        (["--policy=vllm", "--context-cap=500"], "give a larger --context-cap"),
        (["--policy=vllm", "--json=/nowhere/x.json"], "/nowhere/x.json: there is no such folder"),
        (["--policy=vllm", "--plot=/nowhere/x.png"], "/nowhere/x.png: there is no such folder"),
    ],
)
def test_options_that_cannot_be_met_are_an_error(
    options: list[str], message: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--traces", str(traces), *options]) == 1
    assert message in _error(capsys)


@pytest.mark.parametrize(
    "option",
    ["--sessions=0", "--sessions=5,x", "--seed=a", "--chunk=0", "--offload-gib=-1",
     "--offload-gib=nan", "--processes=0", "--turn-cap=0", "--preset=mine"],
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_named(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--traces=synthetic", "--policy=vllm", option])
    assert ended.value.code == 2
    assert f"argument {option.split('=')[0]}: invalid" in capsys.readouterr().err


def test_sessions_that_would_be_both_trained_on_and_replayed_are_an_error(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--traces", str(traces), "--train", str(traces), "--policy=vllm"]
    assert main(["replay", *options]) == 1
    assert "session traces/s0 is in --train and in --traces" in _error(capsys)


def test_sessions_that_are_named_twice_are_an_error(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--traces", f"{traces},{traces.parent}", "--policy=vllm"]) == 1
    assert "session traces/s0 is twice in" in _error(capsys)


@pytest.mark.parametrize(
    ("text", "message"), [("", "no turns found"), ("{broken\n{}\n", "2 lines were unusable")]
)
def test_traces_without_a_turn_are_an_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text(text)
    assert main(["replay", "--traces", str(file), "--policy=vllm"]) == 1
    assert message in _error(capsys)


def test_a_session_longer_than_the_pool_is_named_before_anything_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(trace_line(prompt_tokens=900_000))
    options = ["--traces", str(file), "--policy=vllm", "--context-cap=1000000"]
    assert main(["replay", *options]) == 1
    assert "session long/abc needs 56,258 blocks and the pool of 2xH200" in _error(capsys)


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    """What was written to stderr, on one line."""
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_policies_run_in_processes_of_their_own(traces: Path, tmp_path: Path) -> None:
    options = ["--traces", str(traces), "--sessions=2", "--policy=vllm", "--policy=ours"]
    assert [row["policy"] for row in _rows(tmp_path, *options)] == ["vllm", "ours"]
