"""What is read from arguments of real shape, whole and cut."""

from __future__ import annotations

import time

import pytest
from cachewise_predictor.calls import MAX_NAME, main_call, read_call
from cachewise_predictor.events import ToolCall
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("arguments", "program", "action"),
    [
        ('{"command": "git status --short"}', "git", "git status"),
        ('{"command": "cd /a/b && CI=1 /usr/bin/make -j 4 all"}', "make", "/usr/bin/make 4"),
        ('{"command": "cd /a\\nsudo npm run build 2>&1 | tail"}', "npm", "npm run"),
        ('{"cmd": "cargo test -p x", "yield_time_ms": 1000}', "cargo", "cargo test"),
        ('const r = await tools.exec_command({cmd:"rg -n foo src"})', "rg", "rg foo"),
        ('{"command": "\\"quoted\\""}', "", ""),
        ('{"file_path": "/a"}', "", ""),
        ("", "", ""),
    ],
)
def test_program_and_action(arguments: str, program: str, action: str) -> None:
    parts = read_call(ToolCall("Bash", arguments))
    assert (parts.program, parts.action) == (program, action)


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "limit"),
    [
        ("wait", '{"cell_id": "1", "yield_time_ms": 30000}', "wait", "yield_time_ms 30000"),
        ("exec", "tools.wait({id:5,yield_time_ms:9})", "exec:wait", "yield_time_ms 9"),
        ("Bash", '{"command": "make", "timeout": 120000}', "Bash", "timeout 120000"),
        ("wait_agent", '{"timeout_ms": 10000}', "wait_agent", "timeout_ms 10000"),
        ("Bash", '{"command": "x", "run_in_background": true}', "Bash", "background"),
        ("Bash", '{"command": "x", "run_in_background": false}', "Bash", ""),
    ],
)  # fmt: skip
def test_kind_and_limit(name: str, arguments: str, kind: str, limit: str) -> None:
    parts = read_call(ToolCall(name, arguments))
    assert (parts.kind, parts.limit) == (kind, limit)


def test_commands_that_differ_in_numbers_only_are_the_same_and_are_not_readable() -> None:
    first, second, other = (
        read_call(ToolCall("Bash", f'{{"command": "gh run view {text}"}}')).command
        for text in ("123", "45678", "12 --log")
    )
    assert first == second != other
    assert "gh" not in first


def test_the_main_call_is_a_shell_or_the_longest() -> None:
    shell, read, task = (
        ToolCall("Bash", "ls"),
        ToolCall("Read", "x" * 9),
        ToolCall("Task", "y" * 99),
    )
    assert main_call([read, shell, task]) is shell
    assert main_call([read, task]) is task


@given(st.text(max_size=400), st.text(max_size=200))
def test_any_text_can_be_read(name: str, arguments: str) -> None:
    for text in (arguments, f'{{"command": "{arguments}'):
        assert max(map(len, read_call(ToolCall(name, text)))) <= MAX_NAME


@pytest.mark.parametrize(
    "piece", ["\\", "cd a;", "A=b ", "sudo ", "tools.", 'command:"', "timeout 1 "]
)
def test_hostile_arguments_take_no_time(piece: str) -> None:
    text = ('{"command": "' + piece * 400)[:400]
    start = time.perf_counter()
    read_call(ToolCall("exec", text))
    assert time.perf_counter() - start < 0.05
