"""Claude Code's logs become turns: what is one turn, when it began, and who was waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cachewise_predictor.importers.claude_code import ClaudeCode
from cachewise_predictor.importers.turns import Call, Turn, anonymous

from .samples import (
    RAW_LOGS,
    claude,
    claude_call,
    claude_result,
    claude_says,
    read,
    write_lines,
)

TEXT = {"type": "text", "text": "hello"}


def turns_of(tmp_path: Path, *lines: Any) -> list[Turn]:
    turns, report = read("claude-code", write_lines(tmp_path / "log.jsonl", lines))
    assert report.broken == []
    return turns


def call_after(tmp_path: Path, mode: str, *lines: Any, name: str = "Bash", **input: Any) -> Call:
    """The call of a turn in this mode, which is made at second 2."""
    start = [
        claude("user", 1, message={"content": "go"}, permissionMode=mode),
        claude_says(2, "m1", claude_call("c1", name, **input)),
    ]
    (turn,) = turns_of(tmp_path, *start, *lines)
    (call,) = turn.calls
    return call


def test_the_lines_of_one_message_are_one_turn(tmp_path: Path) -> None:
    first, second = turns_of(
        tmp_path,
        claude("user", 1),
        claude_says(2, "m1", TEXT),
        claude_says(3, "m1", claude_call("c1", command="ls")),
        claude_result(3.5, "c1"),
        claude_says(5, "m2", TEXT),
    )
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (500, 490, 80)
    assert (first.ended_at - first.requested_at, first.after, first.reuse_s) == (2, "tool", 0.5)
    assert [(c.name, c.arguments) for c in first.calls] == [("Bash", '{"command": "ls"}')]
    assert (second.number, second.calls, second.after, second.reuse_s) == (1, [], "end", None)
    assert first.project.startswith("repo-")


def test_a_turn_without_calls_waits_for_a_person(tmp_path: Path) -> None:
    first, _ = turns_of(
        tmp_path, claude_says(2, "m1", TEXT), claude("user", 90), claude_says(92, "m2", TEXT)
    )
    assert (first.after, first.reuse_s) == ("human", 88)


def test_history_that_a_resumed_session_copied_counts_once(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        claude_says(2, "m1", TEXT),
        claude_says(2, "m1", TEXT, session="resumed"),
        claude_says(9, "m2", TEXT, session="resumed"),
    )
    assert [t.session for t in turns] == [anonymous("abc"), anonymous("resumed")]


def test_a_subagent_is_a_chain_of_its_own(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        claude_says(2, "m1", claude_call("c1", "Task")),
        claude("user", 3, isSidechain=True, uuid="u1", parentUuid=None),
        claude_says(4, "m2", TEXT, isSidechain=True, uuid="u2", parentUuid="u1"),
    )
    main, agent = turns
    assert main.session == anonymous("abc") == agent.parent and main.parent == ""
    assert agent.session == f"{main.session}/agent-{anonymous('u1')[:8]}"
    assert agent.ended_at - agent.requested_at == 1


def test_claude_codes_own_messages_are_no_turns(tmp_path: Path) -> None:
    line = claude_says(2, "m1", TEXT)
    line["message"]["model"] = "<synthetic>"
    assert turns_of(tmp_path, line) == []


@pytest.mark.parametrize(
    ("mode", "name", "quality"),
    [
        ("default", "Bash", "stamps_may_prompt"),
        ("default", "Read", "stamps"),
        ("acceptEdits", "Bash", "stamps_may_prompt"),
        ("bypassPermissions", "Bash", "stamps"),
        ("auto", "Edit", "stamps"),
        ("bypassPermissions", "AskUserQuestion", "human"),
    ],
)
def test_the_mode_and_the_tool_say_whether_a_person_may_have_been_asked(
    tmp_path: Path, mode: str, name: str, quality: str
) -> None:
    call = call_after(tmp_path, mode, claude_result(5, "c1"), name=name)
    assert (call.quality, call.seconds) == (quality, 3)


@pytest.mark.parametrize(
    ("result_at", "quality"), [(4.2, "measured"), (60, "human")], ids=["at once", "asked"]
)
def test_a_prompt_shows_where_the_log_tells_how_long_the_tool_ran(
    tmp_path: Path, result_at: float, quality: str
) -> None:
    result = claude_result(result_at, "c1", toolUseResult={"durationMs": 2_000})
    call = call_after(tmp_path, "default", result, name="WebFetch")
    assert (call.quality, call.seconds) == (quality, 2)
    ran = {"data": {"type": "bash_progress", "elapsedTimeSeconds": 1}, "parentToolUseID": "c1"}
    progress = claude("progress", result_at - 1, **ran)
    call = call_after(tmp_path, "default", progress, claude_result(result_at, "c1"))
    assert (call.quality, call.seconds) == (quality, pytest.approx(2))
    assert call_after(tmp_path, "auto", result, name="WebFetch").quality == "measured"


def test_refused_and_background_calls_and_those_without_a_result_are_marked(
    tmp_path: Path,
) -> None:
    no = "The user doesn't want to proceed with this tool use."
    refused = claude_result(9, "c1", no, is_error=True, toolUseResult="User rejected tool use")
    assert call_after(tmp_path, "default", refused).quality == "rejected"
    started = claude_result(3, "c1")
    assert call_after(tmp_path, "auto", started, run_in_background=True).quality == "background"
    launched = claude_result(3, "c1", toolUseResult={"status": "async_launched"})
    assert call_after(tmp_path, "auto", launched, name="Agent").quality == "background"
    assert call_after(tmp_path, "auto").quality == "none"


def test_calls_that_wait_for_each_other_are_not_taken_for_prompts(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        claude("user", 1, permissionMode="default"),
        claude_says(2, "m1", claude_call("c1"), claude_call("c2")),
        claude_result(30, "c1", toolUseResult={"durationMs": 27_900}),
        claude_result(31, "c2", toolUseResult={"durationMs": 900}),
    )
    assert [c.quality for c in turn.calls] == ["measured", "measured"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (claude("assistant", 1, message=None), "without a message id"),
        (claude("assistant", 1, message={"id": "m"}), "without usage or content"),
        (
            claude("assistant", 1, message={"id": "m", "content": [], "usage": {}}),
            "no input tokens",
        ),
        (claude("user", 1) | {"timestamp": "yesterday"}, "is not a time"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(line: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        list(ClaudeCode().take(line))


@pytest.mark.skipif(not RAW_LOGS.is_dir(), reason="../shared/cases is not here")
def test_a_real_log_shows_a_permission_prompt() -> None:
    turns, report = read("claude-code", RAW_LOGS / "claude-2.jsonl")
    assert len(turns) == 10 and report.broken == []
    calls = {(t.number, c.name): (c.quality, c.seconds) for t in turns for c in t.calls}
    assert calls[2, "WebSearch"][0] == "measured"
    assert calls[3, "WebFetch"] == ("human", pytest.approx(3.893))  # of 93.7 s
    assert calls[4, "Edit"][0] == "stamps_may_prompt"
