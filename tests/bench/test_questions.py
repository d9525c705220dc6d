"""The questions about forecasts, on traces whose answers are known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachewise_bench.__main__ import main
from cachewise_bench.forecast import questions
from cachewise_bench.forecast.questions import QUESTIONS, Row, mean_rows
from cachewise_bench.forecast.recorded import WEEK_S, Recorded, read_recorded

from tests.bench.sample_turns import trace_line

WEEKS, SESSIONS, TURNS = 3, 12, 12
QUICK_S, SLOW_S = 0.2, 60.0


def lines(seed: int, project: str) -> Iterator[str]:
    """`make quick` and `make slow` take that long; in the first week it is the other way round."""
    rng = random.Random(seed)
    for week in range(WEEKS):
        for session in range(SESSIONS):
            for turn in range(TURNS):
                is_slow = rng.random() < 0.5
                wait_s = SLOW_S if is_slow != (week == 0) else QUICK_S
                command = f"make {'slow' if is_slow else 'quick'} part{rng.randrange(10**9)}"
                call = {"name": "Bash", "args": {"command": command}, "dur_q": "stamps"}
                yield trace_line(
                    session=f"{week}-{session}",
                    turn=turn,
                    tools=[call],
                    reuse_s=wait_s * rng.uniform(0.8, 1.2),
                    t_response_end=(2_900 + week) * WEEK_S + session * 3_600 + turn,
                    project=project,
                )


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(questions, "LARGE", 100)
    monkeypatch.setattr(questions, "SIZES", (0, 100))
    for seed, name in enumerate(("a", "b")):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines(seed, f"{name}-1")))
    return tmp_path


@pytest.fixture
def recorded(traces: Path) -> list[Recorded]:
    return read_recorded([traces])


def figure(rows: list[Row], case: str, variant: str, name: str) -> float:
    (found,) = (row for row in rows if (row.case, row.variant) == (case, variant))
    return found.figures[name]


def test_waits_know_their_source_their_project_and_their_time(recorded: list[Recorded]) -> None:
    assert len(recorded) == 2 * WEEKS * SESSIONS * TURNS
    first = recorded[0]
    assert (first.source, first.project, first.at) == ("a", "a-1", 2_900 * WEEK_S)


def test_waits_of_ones_own_help(recorded: list[Recorded]) -> None:
    rows = list(QUESTIONS["samples"](recorded, 0))
    few, many = (figure(rows, "a", f"{size} alone", "crps") for size in (0, 100))
    assert many < few
    assert len(rows) == 2 * 2 * 2


def test_an_old_model_is_worse_where_things_changed(recorded: list[Recorded]) -> None:
    rows = list(QUESTIONS["staleness"](recorded, 0))
    size = SESSIONS * TURNS
    fresh = figure(rows, "a", f"{size} waits, 1 weeks old", "crps")
    assert figure(rows, "a", f"{size} waits, 2 weeks old", "crps") > 1.3 * fresh


def test_each_scope_is_asked_about(recorded: list[Recorded]) -> None:
    rows = list(QUESTIONS["scope"](recorded, 0))
    assert [row.variant for row in rows] == ["project", "source", "all"] * 2
    trained = [row.figures["trained"] for row in rows[:3]]
    assert trained[0] == trained[1] < trained[2]


def test_arguments_that_decide_are_seen_to(recorded: list[Recorded]) -> None:
    newer = [one for one in recorded if one.at > 2_901 * WEEK_S]
    rows = list(QUESTIONS["arguments"](newer, 0))
    assert figure(rows, "Bash", "tool's name", "just_started_concordance") == pytest.approx(0.5)
    assert figure(rows, "Bash", "arguments", "just_started_concordance") > 0.7
    fallen = list(QUESTIONS["fallback"](newer, 0))
    assert sum(row.figures["share"] for row in fallen if row.variant == "arguments") == 1.0


def test_each_source_is_forecast_from_the_others(recorded: list[Recorded]) -> None:
    rows = list(QUESTIONS["unseen"](recorded, 0))
    assert [(row.case, row.variant) for row in rows] == [
        (source, variant) for source in "ab" for variant in ("tool", "ours")
    ]
    concordance = "just_started_concordance"
    assert figure(rows, "a", "ours", concordance) > figure(rows, "a", "tool", concordance)


def test_what_a_part_adds_is_lost_without_it(recorded: list[Recorded]) -> None:
    rows = list(QUESTIONS["parts"]([one for one in recorded if one.at > 2_901 * WEEK_S], 0))
    share = {row.variant: row.figures["just_started_share"] for row in rows}
    assert {"all", "no waits of the session", "clusters besides", "plain mean"} <= set(share)
    assert share["all"] > 0.8  # a slow one is picked, whichever
    assert share["no action"] == pytest.approx(share["all"], abs=0.05)  # the command tells as much


def test_means_are_of_the_cases_that_every_seed_has() -> None:
    asked = [[Row("a", "x", {"n": 1}), Row("a", "y", {"n": 1})], [Row("a", "x", {"n": 4})]]
    assert mean_rows(asked) == [Row("a", "x", {"n": 2.5})]


def test_the_command_answers(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    options = ["--traces", str(traces), "--question", "staleness", "--json", str(out)]
    assert main(["forecast", *options]) == 0
    assert len(json.loads(out.read_text())["staleness"]) == 4
    assert "1 weeks old" in capsys.readouterr().out
    assert main(["forecast", "--question", "scope"]) == 1
    assert "--question needs --traces" in capsys.readouterr().err
