"""`import`: from logs to a trace that trains; whatever the input, named and never raised."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cachewise_predictor import traces
from cachewise_predictor.errors import TraceError
from cachewise_predictor.importers.command import FORMATS, find_logs, import_logs
from cachewise_predictor.insight import explain
from cachewise_predictor.records import MAX_LINE_BYTES, json_lines
from cachewise_predictor.report import MAX_BROKEN_NAMED, MAX_REASONS, ReadReport
from cachewise_predictor.store import Store
from cachewise_predictor.train import TENANT, load_current, train
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ..conftest import TRACES
from .samples import (
    RAW_LOGS,
    claude,
    claude_call,
    claude_result,
    claude_says,
    codex,
    codex_call,
    codex_output,
    read,
    write_lines,
)

QUIET = Console(quiet=True)


def session_of(commands: int) -> list[dict[str, Any]]:
    """A log of Claude Code: each command takes 5 s and more."""
    lines = [claude("user", 0, permissionMode="auto")]
    for n in range(commands):
        call = claude_call(f"c{n}", command=f"make PASSWORD=hunter2-{n} all")
        lines += [claude_says(10 * n + 1, f"m{n}", call), claude_result(10 * n + 6.5, f"c{n}")]
    return lines


async def test_logs_are_imported_trained_and_explained(tmp_path: Path, store: Store) -> None:
    log = write_lines(tmp_path / "log.jsonl", [*session_of(100), "broken", {"type": "summary"}])
    out = tmp_path / "out.jsonl.gz"
    summary = import_logs("claude-code", [log], out, QUIET)
    assert "100 turns of 1 files" in summary and "99 for tools alone" in summary
    assert "1 summary lines; broken: 1" in summary
    assert "hunter2" not in gzip.decompress(out.read_bytes()).decode()
    assert "99 waits" in await train([out], store)
    text = explain(await load_current(store), TENANT, "Bash", "make PASSWORD=other all")
    assert "action make" in text and "source: cluster, 99 intervals" in text


def test_logs_that_teach_nothing_are_said_to_and_why(tmp_path: Path) -> None:
    lines = [claude("user", 0, permissionMode="default"), *session_of(3)[1:]]
    summary = import_logs(
        "claude-code", [write_lines(tmp_path / "log.jsonl", lines)], tmp_path / "out.jsonl", QUIET
    )
    assert "0 for tools alone" in summary and "nothing to learn from here" in summary


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces beside the repository")
def test_an_imported_trace_teaches_the_same(tmp_path: Path) -> None:
    original = TRACES / "agentv.jsonl.gz"
    import_logs("normalized", [original], tmp_path / "again.jsonl", QUIET)
    first, second = (
        list(traces.read_trace(path, TENANT, ReadReport(), lambda size: None))
        for path in (original, tmp_path / "again.jsonl")
    )
    assert len(first) > 1_000 and first == second


@pytest.mark.skipif(not RAW_LOGS.is_dir(), reason="../shared/cases is not here")
@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode"])
def test_real_logs_become_traces(tmp_path: Path, name: str) -> None:
    logs = sorted(RAW_LOGS.glob(f"{name.split('-')[0]}*"))
    import_logs(name, logs, tmp_path / "out.jsonl", QUIET)
    report = ReadReport()
    waits = list(traces.read_trace(tmp_path / "out.jsonl", TENANT, report, lambda size: None))
    assert len(waits) > 5 and report.broken == []


def test_nothing_to_import_leaves_no_file_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(TraceError, match="no turns in 1 files: 1 broken records, the first .*a:1"):
        import_logs("codex", [write_lines(tmp_path / "a", ["{"])], out, QUIET)
    with pytest.raises(TraceError, match="nowhere: no such file"):
        import_logs("codex", [tmp_path / "nowhere"], out, QUIET)
    with pytest.raises(TraceError, match=r"no events\.json or events\.json\.gz in "):
        import_logs("cachewise-traces", [tmp_path], out, QUIET)
    with pytest.raises(TraceError, match="out.jsonl: No such file"):
        import_logs("codex", [tmp_path / "a"], tmp_path / "missing" / "out.jsonl", QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_are_searched_through_by_the_formats_suffix(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for name in ("x.jsonl", "y.jsonl.gz", "z.json", "notes.txt"):
        (deep / name).write_text("")
    assert [p.name for p in find_logs([tmp_path], FORMATS["codex"].suffixes)] == [
        "x.jsonl",
        "y.jsonl.gz",
    ]


@pytest.mark.parametrize("name", ["opencode", "cachewise-traces"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, {", b"\xff\xfe", b"[" * 100_000, b'{"info": 3, "messages": [7]}']
)
def test_a_damaged_document_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "events.json"
    path.write_bytes(content)
    turns, report = read(name, path)
    assert turns == []
    assert all(line.startswith(f"{path}:") for line in report.broken)


def test_a_line_without_end_takes_no_memory_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.truncate(2 * MAX_LINE_BYTES + 5)
    with path.open("ab") as file:
        file.write(b'\n{"a": 1}\n')
    report = ReadReport()
    assert [record for _, record in json_lines(path, report, lambda size: None)] == [{"a": 1}]
    assert report.broken == [f"{path}:1: longer than {MAX_LINE_BYTES:,} bytes"]


def test_the_report_stays_small(tmp_path: Path) -> None:
    report = ReadReport()
    for n in range(10 * MAX_BROKEN_NAMED):
        report.add_broken(f"a:{n}", ValueError("x" * 10_000))
        report.skip(f"reason {n}")
    assert report.broken_count == sum(report.skipped.values()) == 10 * MAX_BROKEN_NAMED
    assert len(report.broken) == MAX_BROKEN_NAMED and len(report.broken[0]) < 400
    assert len(report.skipped) == MAX_REASONS + 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
LINES = {
    "claude-code": session_of(2),
    "codex": [
        codex("session_meta", 0, id="s"),
        codex_call(1, "c1"),
        codex_output(2, "c1"),
        codex_call(3, "c2"),
    ],
    "normalized": [
        {
            "session": "s",
            "turn": 0,
            "tools": [{"name": "Bash", "args": {"a": 1}, "dur": 1, "dur_q": "measured"}],
            "next": "tool",
            "reuse_s": 1.5,
        }
    ],
}


@pytest.mark.parametrize("name", LINES)
@given(data=st.data())
def test_whatever_is_in_a_line_it_is_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Any value of a good log is replaced by anything."""
    lines = json.loads(json.dumps(LINES[name]))
    where, keys = data.draw(st.sampled_from(lines)), []
    while isinstance(where, dict | list) and where:
        keys.append(where)
        options = list(where) if isinstance(where, dict) else range(len(where))
        key = data.draw(st.sampled_from(options))
        if data.draw(st.booleans()):
            break
        where = where[key]
    keys[-1][key] = data.draw(ANYTHING)
    path = tmp_path_factory.mktemp("any") / "log.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    turns, _ = read(name, path)
    out = path.with_name("out.jsonl")
    if turns:
        import_logs(name, [path], out, QUIET)
        assert len(out.read_text().splitlines()) == len(turns)


@pytest.mark.parametrize("name", FORMATS)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(content)
    turns, _ = read(name, path)
    assert turns == []
