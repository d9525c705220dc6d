from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cachewise_bench.script import Scales, Script, Tokenizer, write_scripts
from cachewise_bench.tiny_model import WORDS
from cachewise_bench.workload import Session, ToolCall, Turn

from tests.bench.sample_turns import session, turn

SCALES = Scales(tokens=0.1, time=0.5, max_wait_s=3.0)
LONG = session("long", 20_000, 21_000, 30_000, 32_000)


def write(tokenizer: Tokenizer, *sessions: Session) -> list[Script]:
    return write_scripts(sessions, tokenizer, SCALES, seed=0)


def test_every_word_is_one_token(tokenizer: Tokenizer) -> None:
    def count(text: str) -> int:
        return tokenizer.count([{"role": "user", "content": text}])

    assert count("".join(f" {word}" for word in WORDS)) - count("") == len(WORDS)


def test_prompts_have_the_traced_sizes_scaled(tokenizer: Tokenizer) -> None:
    (script,) = write(tokenizer, LONG)
    assert [step.prompt_tokens for step in script.steps] == [2000, 2100, 3000, 3200]
    assert [tokenizer.count(step.messages) for step in script.steps] == [2000, 2100, 3000, 3200]


def test_each_prompt_begins_with_the_one_before(tokenizer: Tokenizer) -> None:
    (script,) = write(tokenizer, LONG)
    for before, after in zip(script.steps, script.steps[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages


def test_the_answer_in_the_next_prompt_is_the_one_that_was_forced(tokenizer: Tokenizer) -> None:
    (script,) = write(tokenizer, LONG)
    function = script.steps[0].constraints["tools"][0]["function"]
    answer = script.steps[1].messages[-2]
    assert answer["tool_calls"][0]["function"]["name"] == function["name"] == "Bash"
    forced = {k: v["enum"][0] for k, v in function["parameters"]["properties"].items()}
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == forced
    assert forced["command"] == "ls 0" and function["strict"]


def test_the_last_turn_and_those_before_a_person_answer_in_words(tokenizer: Tokenizer) -> None:
    asked = Session("s", (turn(20_000, tools=0), turn(21_000), turn(22_000)))
    (script,) = write(tokenizer, asked)
    assert [step.calls_tool for step in script.steps] == [False, True, False]
    assert script.steps[1].messages[-1]["role"] == "user"
    assert script.steps[2].messages[-1]["role"] == "tool"


def test_waits_are_scaled_and_clipped(tokenizer: Tokenizer) -> None:
    waits = Session("s", tuple(replace(turn(20_000 + i), wait_s=w) for i, w in enumerate((2, 90))))
    (script,) = write(tokenizer, waits)
    assert [step.wait_s for step in script.steps] == [1.0, 3.0]


def test_all_sessions_share_the_system_prompt_and_nothing_else(tokenizer: Tokenizer) -> None:
    first, second = write(tokenizer, LONG, replace(LONG, name="other"))
    assert first.steps[0].messages[0] == second.steps[0].messages[0]
    assert first.steps[0].messages[1] != second.steps[0].messages[1]


def test_the_same_arguments_write_the_same_scripts(tokenizer: Tokenizer) -> None:
    assert write(tokenizer, LONG) == write(tokenizer, LONG)


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        (ToolCall("Bash", '{"command": "ls\\n -la\\u0000"}'), "Bash", {"command": "ls -la"}),
        (ToolCall("mcp.x/y", "text(1)"), "mcp_x_y", {"command": "text(1)"}),
        (ToolCall("", ""), "tool", {"command": "none"}),
        (ToolCall("T", '{"limit": 5}'), "T", {"command": '{"limit": 5}'}),
        (ToolCall("Read", '{"limit": 5, "file path": "é"}'), "Read", {"file_path": "é"}),
        (ToolCall("Bash", json.dumps({"command": "x" * 400})), "Bash", {"command": "x" * 48}),
    ],
)
def test_any_traced_call_becomes_one_that_a_schema_can_force(
    tokenizer: Tokenizer, call: ToolCall, name: str, arguments: dict[str, str]
) -> None:
    turns = (Turn(20_000, 16, (call,), 0), turn(21_000))
    (script,) = write(tokenizer, Session("s", turns))
    function = script.steps[1].messages[-2]["tool_calls"][0]["function"]
    assert function["name"] == name
    assert json.loads(function["arguments"]) == arguments


def test_sessions_of_one_harness_share_its_system_prompt(tokenizer: Tokenizer) -> None:
    other = replace(LONG, name="other", harness="codex", system_tokens=8_000)
    first, second, third = write(tokenizer, LONG, other, replace(other, name="third"))
    systems = [script.steps[0].messages[0]["content"] for script in (first, second, third)]
    assert systems[1] == systems[2] != systems[0]
    assert [len(system.split()) for system in systems] == [1200, 800, 800]


def test_after_a_compaction_only_the_system_prompt_is_repeated(tokenizer: Tokenizer) -> None:
    turns = (turn(20_000), turn(30_000), replace(turn(15_000), compacted=True), turn(16_000))
    (script,) = write(tokenizer, Session("s", turns))
    assert [tokenizer.count(step.messages) for step in script.steps] == [2000, 3000, 1500, 1600]
    before, after = script.steps[1].messages, script.steps[2].messages
    assert after[0] == before[0] and [m["role"] for m in after] == ["system", "user"]
    assert after[1] not in before
    assert script.most_context_tokens == script.steps[1].prompt_tokens + script.steps[1].max_tokens
