from __future__ import annotations

from pathlib import Path

import pytest
from cachewise_bench.__main__ import main

from tests.bench.sample_turns import trace_line


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["engine", "--help"])
    assert ended.value.code == 0
    assert "cachewise-bench engine --traces ~/.claude/projects" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["engine", "--sessions", "0"], "--sessions: must be 1 or more"),
        (["engine", "--token-scale", "nan"], "--token-scale: must be above 0"),
        (["engine", "--turns", "x"], "--turns: invalid whole number value: 'x'"),
        (["engine", "--policy", "belady"], "invalid choice: 'belady'"),
        (["engine", "--pool-fraction", "1", "--num-gpu-blocks-override", "9"], "not allowed with"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_traces_that_are_not_there_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--traces", "/nowhere"]) == 1
    assert "/nowhere: no such file or folder" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "--model", str(tmp_path / "none")]) == 1
    assert "none: no model here" in " ".join(capsys.readouterr().err.split())


def test_a_pool_too_small_is_an_error_and_broken_lines_are_reported(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(["{broken", trace_line(), trace_line(turn=1, prompt_tokens=90_000)]))
    options = ["--traces", str(file), "--model", str(tiny_model), "--num-gpu-blocks-override", "9"]
    assert main(["engine", *options]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "a.jsonl:1: not JSON" in error and "1 lines of the traces were skipped" in error
    assert "session a/abc alone needs" in error
