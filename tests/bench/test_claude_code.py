from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cachewise_bench.claude_code import LogReader
from cachewise_bench.traces import read_traces
from cachewise_bench.workload import Session

from tests.bench.sample_turns import claude_line, claude_message

RAW_LOGS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "raw-logs"
LS = {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}
TEXT = {"type": "text", "text": "hello"}


def read(*lines: dict[str, Any]) -> list[Session]:
    reader = LogReader()
    for line in lines:
        reader.add("log.jsonl", line)
    return reader.sessions()


def test_the_lines_of_one_message_are_one_turn() -> None:
    (session,) = read(
        claude_line("user", 1),
        claude_line("assistant", 2, message=claude_message("m1", TEXT)),
        claude_line("assistant", 3, message=claude_message("m1", LS)),
        claude_line("user", 3.5),
        claude_line("assistant", 5, message=claude_message("m2", TEXT, prompt=700)),
    )
    first, second = session.turns
    assert (first.prompt_tokens, first.output_tokens, first.wait_s) == (500, 80, 0.5)
    assert [call.name for call in first.tool_calls] == ["Bash"]
    assert (second.prompt_tokens, second.tool_calls, second.wait_s) == (700, (), 0)


def test_history_that_a_resumed_session_copied_counts_once() -> None:
    sessions = read(
        claude_line("assistant", 2, message=claude_message("m1", TEXT)),
        claude_line("assistant", 2, session="resumed", message=claude_message("m1", TEXT)),
        claude_line("assistant", 9, session="resumed", message=claude_message("m2", TEXT)),
    )
    assert [(s.name, len(s.turns)) for s in sessions] == [("abc", 1), ("resumed", 1)]


def test_a_subagent_is_a_chain_of_its_own() -> None:
    side = {"isSidechain": True, "message": claude_message("m2", TEXT)}
    sessions = read(
        claude_line("assistant", 2, message=claude_message("m1", LS)),
        claude_line("user", 3, isSidechain=True, uuid="u1", parentUuid=None),
        claude_line("assistant", 4, uuid="u2", parentUuid="u1", **side),
    )
    assert [s.name for s in sessions] == ["abc", "abc/u1"]


def test_claude_codes_own_messages_are_no_turns() -> None:
    message = claude_message("m1", TEXT) | {"model": "<synthetic>"}
    assert read(claude_line("assistant", 2, message=message)) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (claude_line("assistant", 1, message=None), "without a message id"),
        (claude_line("assistant", 1, message={"id": "m"}), "without usage or content"),
        (
            claude_line("assistant", 1, message={"id": "m", "content": [], "usage": {}}),
            "no input tokens",
        ),
        (claude_line("user", 1) | {"timestamp": "yesterday"}, "is not a time"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(line: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LogReader().add("log.jsonl", line)


@pytest.mark.skipif(not RAW_LOGS.is_dir(), reason="../shared/cases is not here")
def test_real_logs_are_read() -> None:
    traces = read_traces(RAW_LOGS)
    assert [len(session.turns) for session in traces.sessions] == [6, 10]
    assert [c.name for c in traces.sessions[1].turns[6].tool_calls] == ["Glob", "Glob"]
    assert traces.broken_lines == ()
