"""The formats that are one JSON document: OpenCode's exports and the paper's traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cachewise_predictor.importers.turns import Turn, anonymous

from .samples import RAW_LOGS, iso, read


def opencode_message(created: float, *parts: Any, **tokens: Any) -> dict[str, Any]:
    counts = {"input": 100, "output": 20, "reasoning": 5, "cache": {"read": 300, "write": 100}}
    return {
        "info": {
            "role": "assistant",
            "sessionID": "s1",
            "time": {"created": created * 1_000, "completed": created * 1_000 + 9_999},
            "tokens": counts | tokens,
            "path": {"cwd": "/home/me/repo"},
        },
        "parts": list(parts),
    }


def opencode_call(tool: str, start: float, end: float | None, **state: Any) -> dict[str, Any]:
    times = {"start": start * 1_000} | ({} if end is None else {"end": end * 1_000})
    return {"type": "tool", "tool": tool, "state": {"input": {"a": 1}, "time": times, **state}}


def opencode(tmp_path: Path, *messages: Any, **info: Any) -> list[Turn]:
    path = tmp_path / "session.json"
    path.write_text(json.dumps({"info": info, "messages": messages}))
    turns, report = read("opencode", path)
    assert report.broken == []
    return turns


def test_an_opencode_message_ends_with_its_last_call(tmp_path: Path) -> None:
    first, second = opencode(
        tmp_path,
        opencode_message(
            1, {"type": "text", "text": "x", "time": {"end": 2_000}}, opencode_call("bash", 3, 7)
        ),
        opencode_message(8),
        parentID="p1",
    )
    assert (first.session, first.parent) == (anonymous("s1"), anonymous("p1"))
    assert (first.requested_at, first.ended_at, first.reuse_s, first.after) == (1, 3, 5, "tool")
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (500, 300, 25)
    (call,) = first.calls
    assert (call.name, call.seconds, call.quality) == ("bash", 4, "measured")
    assert second.after == "end"


@pytest.mark.parametrize(
    ("call", "quality"),
    [
        (opencode_call("edit", 1, 2), "stamps_may_prompt"),
        (opencode_call("write", 1, 2), "stamps_may_prompt"),
        (opencode_call("bash", 1, 2), "measured"),
        (opencode_call("question", 1, 2), "human"),
        (opencode_call("bash", 1, None), "none"),
        (opencode_call("bash", 1, 2, error="The user rejected permission to use it"), "rejected"),
    ],
)
def test_opencodes_rules_say_who_was_asked(tmp_path: Path, call: Any, quality: str) -> None:
    rules = [{"permission": "edit", "pattern": "*", "action": "ask"}]
    (turn,) = opencode(tmp_path, opencode_message(1, call), permission=rules)
    assert turn.calls[0].quality == quality


def test_an_opencode_message_without_a_response_ends_the_wait_before_it(tmp_path: Path) -> None:
    empty = opencode_message(9, input=0, cache={})
    (turn,) = opencode(tmp_path, opencode_message(1, opencode_call("bash", 3, 7)), empty)
    assert turn.reuse_s == 6


@pytest.mark.skipif(not RAW_LOGS.is_dir(), reason="../shared/cases is not here")
def test_real_exports_of_opencode_are_read() -> None:
    turns, report = read("opencode", RAW_LOGS / "opencode-1.json")
    assert len(turns) == 8 and report.broken == []
    assert turns[0].parent and turns[0].calls[0].name == "grep"
    assert [round(t.reuse_s, 3) for t in turns[:2] if t.reuse_s is not None] == [0.128, 0.098]


def event(kind: str, second: float, **fields: Any) -> dict[str, Any]:
    return {"event_type": kind, "timestamp": iso(second), **fields}


def llm_call(second: float) -> dict[str, Any]:
    tokens = {"input_tokens": 10, "cache_creation_input_tokens": 90, "output_tokens": 20}
    return event("llm_call", second, cache_read_input_tokens=400, **tokens)


def tool_call(second: float, name: str, milliseconds: float | None) -> dict[str, Any]:
    fields = {"tool_input": {"content": "<redacted>"}, "execution_time_ms": milliseconds}
    return event("tool_call", second, tool_name=name, **fields)


def cachewise(tmp_path: Path, *events: Any) -> list[Turn]:
    path = tmp_path / "parsed_traces" / "project" / "session" / "events.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(events))
    turns, report = read("cachewise-traces", path)
    assert report.broken == []
    return turns


def test_the_papers_events_become_turns(tmp_path: Path) -> None:
    first, second, third, last = cachewise(
        tmp_path,
        event("user_message", 1),
        llm_call(4),
        tool_call(4.5, "Read", 1_500),
        tool_call(5, "Bash", 4_000),
        llm_call(12),
        event("user_message", 60),
        llm_call(63),
        llm_call(99),
    )
    assert (first.requested_at, first.ended_at) == (second.requested_at - 8, first.requested_at + 4)
    assert (first.prompt_tokens, first.cached_tokens, first.reuse_s) == (500, 400, 4)
    assert [(c.quality, c.seconds) for c in first.calls] == [
        ("stamps", 1.5),
        ("stamps_may_prompt", 4),
    ]
    assert (second.after, second.reuse_s) == ("human", 48)
    assert (third.after, third.reuse_s) == ("end", None)  # nobody knows when the next one came
    assert last.project.startswith("project-")


def test_a_call_without_a_time_leaves_the_wait_unknown(tmp_path: Path) -> None:
    first, _ = cachewise(tmp_path, llm_call(4), tool_call(5, "Bash", None), llm_call(9))
    assert (first.after, first.reuse_s, first.calls[0].quality) == ("end", None, "none")


def test_halves_of_characters_do_not_come_in(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps([llm_call(4), tool_call(5, "\ud800 \U0001f600", 1)]))
    turns, _ = read("cachewise-traces", path)
    assert turns[0].calls[0].name == "? \U0001f600"
