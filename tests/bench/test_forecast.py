"""The protocol against cases computed by hand, and the command on good and broken input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.forecast.methods import Elapsed, Known
from cachewise_bench.forecast.protocol import Floats, Indices, evaluate

from tests.bench.sample_turns import trace_line

WAITS = np.random.default_rng(1).exponential(10.0, 2_000)


class Exponential:
    """The truth about WAITS, which nobody can tell apart."""

    def remaining(self, interval: Indices, elapsed_s: Floats) -> Floats:
        return np.full(len(interval), 10.0)

    def transform(self, wait_s: Floats) -> Floats:
        return np.asarray(-np.expm1(-wait_s / 10.0))


def test_the_oracle_is_always_right_and_has_no_distribution() -> None:
    figures = evaluate(Known(WAITS), WAITS, seed=0)
    assert {v for k, v in figures.items() if k.startswith(("just", "random"))} == {1.0}
    assert figures["pit_ks"] is None


def test_knowing_nothing_is_as_good_as_chance() -> None:
    figures = evaluate(Elapsed(), WAITS, seed=0)
    assert figures["just_started_top1"] == pytest.approx(0.1, abs=0.03)
    assert figures["just_started_concordance"] == 0.5
    assert figures["random_moment_concordance"] == pytest.approx(0.5, abs=0.02)


def test_the_true_distribution_is_honest_and_a_wrong_one_is_not() -> None:
    figures = evaluate(Exponential(), WAITS, seed=0)
    assert figures["pit_ks"] is not None and figures["pit_ks"] < 0.04
    assert figures["coverage50"] == pytest.approx(0.5, abs=0.04)
    assert figures["coverage90"] == pytest.approx(0.9, abs=0.03)
    twice = evaluate(Exponential(), 2 * WAITS, seed=0)
    assert twice["pit_ks"] is not None and twice["pit_ks"] > 0.2


def write_trace(path: Path, sessions: int) -> Path:
    def line(session: int, turn: int) -> str:
        name = ("Read", "Bash")[turn % 2]
        call = {"name": name, "args": {"command": f"make {turn}"}, "dur": 1, "dur_q": "measured"}
        wait = (0.1, 30.0)[turn % 2] + turn / 100
        return trace_line(session=str(session), turn=turn, tools=[call], reuse_s=wait)

    path.write_text("\n".join(line(s, t) for s in range(sessions) for t in range(20)))
    return path


def test_the_command_compares_all_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, out = write_trace(tmp_path / "a.jsonl", 20), tmp_path / "out.json"
    assert main(["forecast", "--traces", str(traces), "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["train"] == {"sessions": 16, "waits": 320}
    methods = result["methods"]
    assert methods["tool"]["just_started_top1"] > methods["elapsed"]["just_started_top1"]
    assert methods["oracle"]["random_moment_top1"] == 1
    assert "oracle" in capsys.readouterr().out


def test_train_and_test_may_be_given_apart(tmp_path: Path) -> None:
    train, test = write_trace(tmp_path / "a.jsonl", 9), write_trace(tmp_path / "b.jsonl", 2)
    options = ["--train", str(train), "--test", str(test), "--method", "tool"]
    assert main(["forecast", *options]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --train and --test, or --traces"),
        (["--train", "a"], "give either --train and --test, or --traces"),
        (["--traces", "/nowhere"], "/nowhere: no such file"),
    ],
)
def test_unusable_input_is_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
