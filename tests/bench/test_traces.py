from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cachewise_bench.traces import read_traces
from cachewise_bench.workload import WorkloadError
from cachewise_predictor.importers.turns import anonymous
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.sample_turns import claude_line, claude_message, trace_line

SHARED = Path(__file__).resolve().parents[3] / "shared"


def test_a_turn_keeps_its_sizes_its_calls_and_its_wait(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(trace_line())
    (session,) = read_traces(tmp_path / "a.jsonl").sessions
    (turn,) = session.turns
    assert session.name == "a/abc"
    assert (turn.prompt_tokens, turn.output_tokens, turn.wait_s) == (1000, 100, 0.7)
    assert turn.tool_calls[0].name == "Bash"
    assert json.loads(turn.tool_calls[0].arguments) == {"command": "git status"}


def test_broken_lines_are_skipped_and_reported_by_file_and_line(tmp_path: Path) -> None:
    lines = [
        trace_line(),
        "{not json",
        "",
        "[1, 2]",
        trace_line(prompt_tokens="many"),
        trace_line(prompt_tokens=None),
        trace_line(prompt_tokens=-5),
        trace_line(reuse_s=float("nan")),
        trace_line(tools=[{"no": "name"}]),
        trace_line(tools="Bash"),
        '{"something": "else"}',
        trace_line(turn=1, prompt_tokens=2000),
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(lines))
    traces = read_traces(file)
    assert [turn.prompt_tokens for turn in traces.sessions[0].turns] == [1000, 2000]
    assert [line.split(": ")[0] for line in traces.broken_lines] == [
        f"{file}:{n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)
    ]
    assert "not JSON" in traces.broken_lines[0]
    assert "prompt_tokens is missing" in traces.broken_lines[3]


def test_a_truncated_gzip_file_gives_what_can_be_read(tmp_path: Path) -> None:
    lines = [trace_line(turn=n, prompt_tokens=1000 + 7919 * n) for n in range(4000)]
    whole = gzip.compress("\n".join(lines).encode())
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(whole[: len(whole) // 2])
    traces = read_traces(file)
    assert 0 < len(traces.sessions[0].turns) < 4000
    assert "cannot be read further" in traces.broken_lines[-1]


def test_a_folder_is_searched_through_and_both_formats_may_be_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "a.jsonl.gz").write_bytes(gzip.compress(trace_line().encode()))
    (tmp_path / "deep" / "notes.txt").write_text("not a trace")
    message = claude_message("m1", {"type": "text", "text": "hello"})
    (tmp_path / "deep" / "er" / "log.jsonl").write_text(
        json.dumps(claude_line("user", 1, uuid="u"))
        + "\n"
        + json.dumps(claude_line("assistant", 2, message=message))
    )
    names = {session.name for session in read_traces(tmp_path).sessions}
    assert names == {"a/abc", anonymous("abc")}


def test_turns_are_put_in_order(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(trace_line(turn=n, prompt_tokens=100 + n) for n in (2, 0, 1)))
    (session,) = read_traces(file).sessions
    assert [turn.prompt_tokens for turn in session.turns] == [100, 101, 102]


def test_output_of_a_log_that_kept_only_the_start_is_estimated_from_its_text(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(trace_line(output_tokens=None, output_chars=1000))
    assert read_traces(file).sessions[0].turns[0].output_tokens == 400


@pytest.mark.parametrize("content", ["", "\n\n", "{broken\n"])
def test_a_file_without_turns_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text(content)
    with pytest.raises(WorkloadError, match=r"empty\.jsonl: no turns found"):
        read_traces(file)


def test_a_path_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="nowhere: no such file or folder"):
        read_traces(tmp_path / "nowhere")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEY_NAMES = (
    "session turn prompt_tokens output_tokens output_chars tools next reuse_s type message "
    "timestamp sessionId isSidechain uuid parentUuid name args dur"
)
KEYS = st.sampled_from(KEY_NAMES.split())


@given(st.dictionaries(KEYS, JSON, max_size=12))
def test_any_object_is_read_or_reported_never_raised(
    tmp_path_factory: pytest.TempPathFactory, record: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("any") / "a.jsonl"
    file.write_text(trace_line() + "\n" + json.dumps(record))
    traces = read_traces(file)
    for session in traces.sessions:
        for turn in session.turns:
            assert turn.prompt_tokens >= 1 and turn.output_tokens >= 16 and 0 <= turn.wait_s <= 3600


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="../shared/traces is not here")
def test_the_real_traces_are_read() -> None:
    traces = read_traces(SHARED / "traces" / "ohmyposh.jsonl.gz")
    assert len(traces.sessions) == 37
    assert sum(len(session.turns) for session in traces.sessions) == 2790
    assert not traces.broken_lines


@pytest.mark.skipif(not (SHARED / "cases").is_dir(), reason="../shared/cases is not here")
def test_real_logs_of_claude_code_are_read() -> None:
    (first,) = read_traces(SHARED / "cases" / "raw-logs" / "claude-1.jsonl").sessions
    (second,) = read_traces(SHARED / "cases" / "raw-logs" / "claude-2.jsonl").sessions
    assert [len(session.turns) for session in (first, second)] == [6, 10]
    assert [c.name for c in second.turns[6].tool_calls] == ["Glob", "Glob"]
    assert second.turns[0].wait_s == pytest.approx(0.444)
