"""Codex' logs become turns, whatever the order of outputs and token counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cachewise_predictor.importers.turns import Call, Turn, anonymous

from .samples import RAW_LOGS, codex, codex_call, codex_count, codex_output, read, write_lines


def turns_of(tmp_path: Path, *lines: Any, policy: str = "never") -> list[Turn]:
    start = [
        codex("session_meta", 0, id="s1", cwd="/home/me/repo", source="cli"),
        codex("turn_context", 0, model="gpt", approval_policy=policy),
        codex("response_item", 1, item="message", role="user", content=[]),
    ]
    turns, report = read("codex", write_lines(tmp_path / "log.jsonl", [*start, *lines]))
    assert report.broken == []
    return turns


def call_of(tmp_path: Path, output: Any, *events: Any, policy: str = "on-request") -> Call:
    """The call of a turn, which is made at second 2."""
    (turn,) = turns_of(tmp_path, codex_call(2, "c1"), *events, output, policy=policy)
    return turn.calls[0]


SAID = codex("response_item", 1.5, item="reasoning", summary=[])


@pytest.mark.parametrize(
    "middle",
    [
        [codex_output(3, "c1"), codex_count(3, 1_000)],
        [codex_count(2.5, 1_000), codex_output(3, "c1")],
        [codex_output(3, "c1")],
    ],
    ids=["count last", "count first", "no count"],
)
def test_a_response_and_its_calls_are_one_turn(tmp_path: Path, middle: list[Any]) -> None:
    answer = codex("response_item", 8, item="message", role="assistant", content=[{"text": "ok"}])
    first, second = turns_of(
        tmp_path, SAID, codex_call(2, "c1"), *middle, answer, codex_count(8, 2_000, prompt=600)
    )
    assert (first.session, first.model, first.permission) == (anonymous("s1"), "gpt", "never")
    assert (first.ended_at - first.requested_at, first.after, first.reuse_s) == (1, "tool", 1)
    assert (second.prompt_tokens, second.output_tokens, second.after) == (600, 30, "end")
    assert second.ended_at - second.requested_at == 5


def test_a_repeated_token_count_ends_nothing(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        codex_count(1, 900),
        SAID,
        codex_count(1.6, 1_000),
        codex_count(1.7, 1_000),
    )
    assert turn.prompt_tokens == 500


@pytest.mark.parametrize(
    "text",
    [
        "Wall time: 0.5000 seconds\nOutput: x",
        [{"type": "input_text", "text": "Script completed\nWall time 0.5 seconds"}],
        '{"output": "x", "metadata": {"exit_code": 0, "duration_seconds": 0.5}}',
    ],
)
def test_the_outputs_own_time_is_measured(tmp_path: Path, text: object) -> None:
    call = call_of(tmp_path, codex_output(3, "c1", text), policy="never")
    assert (call.quality, call.seconds) == ("measured", 0.5)


@pytest.mark.parametrize(
    ("policy", "text", "quality"),
    [
        ("never", "x", "stamps"),
        ("on-request", "x", "stamps_may_prompt"),
        ("on-request", "Wall time: 1 seconds", "human"),
        ("never", "Wall time: 1 seconds", "measured"),
        ("on-request", "exec command rejected by user", "rejected"),
    ],
)
def test_the_policy_says_whether_a_person_may_have_been_asked(
    tmp_path: Path, policy: str, text: str, quality: str
) -> None:
    assert call_of(tmp_path, codex_output(60, "c1", text), policy=policy).quality == quality


def test_a_logged_request_for_approval_is_one(tmp_path: Path) -> None:
    asked = codex("event_msg", 2, item="exec_approval_request", call_id="c1")
    assert call_of(tmp_path, codex_output(3, "c1"), asked).quality == "human"


def test_a_spawned_session_knows_its_parent(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "p1", "depth": 1}}}
    lines = [codex("session_meta", 0, id="s2", source=source), SAID]
    turns, _ = read("codex", write_lines(tmp_path / "log.jsonl", lines))
    assert turns[0].parent == anonymous("p1")


@pytest.mark.skipif(not RAW_LOGS.is_dir(), reason="../shared/cases is not here")
@pytest.mark.parametrize(("name", "turns", "calls"), [("codex-1", 13, 21), ("codex-2", 8, 7)])
def test_real_logs_are_read(name: str, turns: int, calls: int) -> None:
    found, report = read("codex", RAW_LOGS / f"{name}.jsonl")
    qualities = [c.quality for t in found for c in t.calls]
    assert (len(found), qualities, report.broken) == (turns, ["measured"] * calls, [])
    assert all(turn.reuse_s is not None and turn.reuse_s < 31 for turn in found[:-1])
