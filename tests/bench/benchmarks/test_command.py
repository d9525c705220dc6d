from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.replay_runs import Plan

from tests.bench.small_traces import write_traces

POLICIES = ["--policy=vllm", "--policy=ours", "--policy=ours-oracle", "--policy=lpm"]


def run(folder: Path, *options: str) -> Path:
    """Writes the page from small traces and returns its path."""
    out = folder / "benchmarks.md"
    counts = ["--sessions=2", "--curves=1,2", "--offload=2"]
    traces = write_traces(folder / "traces.jsonl", sessions=20)
    given = ["--traces", str(traces), *counts, *POLICIES, *options, "--out", str(out)]
    assert main(["benchmarks", *given]) == 0
    return out


def test_it_replays_and_writes_a_page_its_figures_and_its_plots(
    tmp_path: Path, replays_in_this_process: list[Plan]
) -> None:
    out = run(tmp_path)
    text = out.read_text()
    assert "## 2 sessions at once" in text and "## 1 sessions at once" not in text
    assert str(tmp_path) not in text and "from traces;" in text
    for picture in ("benchmarks-against-n.svg", "benchmarks-frontier.svg"):
        assert picture in text and (tmp_path / picture).stat().st_size > 0
    result = json.loads((tmp_path / "benchmarks.json").read_text())
    kinds = {row["policy"]: row["kind"] for row in result["rows"]}
    assert kinds == {"vllm": "rival", "ours": "product", "ours-oracle": "oracle", "lpm": "rival"}
    # A policy that is in no curve is replayed for the table only.
    assert [(len(p.sessions), p.policy) for p in replays_in_this_process if not p.offload_gib] == [
        (1, "vllm"), (1, "ours"), (2, "vllm"), (2, "ours"), (2, "ours-oracle"), (2, "lpm"),
    ]  # fmt: skip
    offloaded = [p.policy for p in replays_in_this_process if p.offload_gib]
    assert offloaded == ["vllm", "ours"] and "## 2 sessions with 256 GiB" in text
    assert all(len(plan.training) == 16 for plan in replays_in_this_process)


def test_the_page_can_be_written_again_from_its_figures(
    tmp_path: Path, replays_in_this_process: list[Plan]
) -> None:
    out = run(tmp_path)
    text, replayed = out.read_text(), len(replays_in_this_process)
    out.unlink()
    figures = tmp_path / "benchmarks.json"
    assert main(["benchmarks", "--figures", str(figures), "--out", str(out)]) == 0
    assert out.read_text() == text
    assert len(replays_in_this_process) == replayed


def test_a_run_that_was_stopped_can_go_on(
    tmp_path: Path, replays_in_this_process: list[Plan]
) -> None:
    text = run(tmp_path).read_text()
    file = tmp_path / "benchmarks.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"rows": whole["rows"][:4]}))
    replays_in_this_process.clear()
    assert _without_timings(run(tmp_path, "--resume").read_text()) == _without_timings(text)
    assert len(replays_in_this_process) == len(whole["rows"]) - 4
    assert len(json.loads(file.read_text())["rows"]) == len(whole["rows"])


def _without_timings(page: str) -> list[str]:
    """The only figures that another run changes are the processor's."""
    return [re.sub(r"\|[^|]*\|$", "", line) for line in page.splitlines() if "CPU" not in line]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out=/nowhere/x.md"], "--out /nowhere/x.md: there is no such folder"),
        (["--policy=fifo"], "no policy 'fifo'; there are vllm, "),
        (["--traces=/nowhere"], "/nowhere: no such file or folder"),
    ],
)
def test_options_that_cannot_be_met_are_an_error(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if options[0].startswith("--out") else ["--out", str(tmp_path / "x.md")]
    assert main(["benchmarks", *out, *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
