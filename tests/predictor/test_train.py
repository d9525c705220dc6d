"""Traces become intervals and the first model; broken input is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.errors import StoreError, TraceError
from cachewise_predictor.events import Wait
from cachewise_predictor.model import Group
from cachewise_predictor.model_file import from_bytes
from cachewise_predictor.report import ReadReport
from cachewise_predictor.store import Store
from cachewise_predictor.traces import find_traces, read_trace
from cachewise_predictor.train import TENANT, train

from .conftest import TRACES, calls


def turn(**changes: Any) -> dict[str, Any]:
    tool = {"name": "Bash", "args": {"command": "ls"}, "dur": 2.0, "dur_q": "measured"}
    return {"session": "s", "turn": 0, "tools": [tool], "next": "tool", "reuse_s": 2.5} | changes


def write(path: Path, lines: Iterable[object]) -> Path:
    text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path) -> tuple[list[tuple[Wait, tuple[str, ...], float, bool]], ReadReport]:
    report = ReadReport()
    intervals = list(read_trace(path, "acme", report, lambda size: None))
    return [
        (i.wait, tuple(c.name for c in i.calls), i.seconds, i.is_finished) for i in intervals
    ], report


def test_waits_are_read_with_their_tools_and_long_ones_are_censored(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl.gz",
        [turn(), turn(next="human", reuse_s=90), turn(reuse_s=9_999.0)],
    )
    intervals, report = read(path)
    assert intervals == [
        (Wait.TOOL, ("Bash",), 2.5, True),
        (Wait.HUMAN, (), 90.0, True),
        (Wait.TOOL, ("Bash",), 3_600.0, False),
    ]
    assert (report.turns, report.broken) == (3, [])


def test_turns_without_a_usable_wait_are_counted_by_reason(tmp_path: Path) -> None:
    guessed = [{"name": "Bash", "dur_q": "approx"}]
    lines = [turn(next="end"), turn(reuse_s=None), turn(reuse_s=-1), turn(tools=guessed)]
    intervals, report = read(write(tmp_path / "a.jsonl", lines))
    assert intervals == []
    assert report.skipped == {"next is end": 1, "no wait": 2, "tool times not trusted": 1}


def test_broken_lines_are_named_by_file_and_line_and_the_others_are_read(tmp_path: Path) -> None:
    lines = ["{", turn(), "[]", "", '{"next": "tool"}', "\udcff", "null", "[" * 100_000]
    lines += [turn(tools=5), turn(tools=[{"dur": 1}]), turn(reuse_s="x"), turn()]
    intervals, report = read(write(tmp_path / "a.jsonl", lines))
    assert len(intervals) == 2
    places = [line.split(": ")[0].rsplit(":")[-1] for line in report.broken]
    assert places == ["1", "3", "5", "6", "7", "8", "9", "10", "11"]


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"{}\n" * 10_000)[:-20]])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    _, report = read(path)
    assert report.broken[-1].startswith(f"{path}:")


def test_folders_are_searched_and_missing_paths_are_named(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", []), write(tmp_path / "b.jsonl.gz", [])
    (tmp_path / "README.md").write_text("")
    assert find_traces([tmp_path]) == [first, second]
    with pytest.raises(TraceError, match="nowhere"):
        find_traces([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="empty"):
        find_traces([tmp_path / "empty"])


async def test_a_trained_model_becomes_the_current_one_each_time(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", ["broken", *[turn(reuse_s=30 + n) for n in range(50)]])
    first_summary = await train([path], store)
    first = await store.pointer()
    assert first is not None and first.version in first_summary
    assert f"skipped {path}:1: " in capsys.readouterr().err
    model = from_bytes(await store.load_model(first.version))
    assert model.row(Group(TENANT, Wait.TOOL, "Bash")).samples == 50
    assert first.position == await store.last_position()
    await store.unread_from()
    taken = (await store.take_intervals(is_again=False)).intervals
    assert [one.is_live for one in taken] == [False] * 50
    await train([write(tmp_path / "b.jsonl", [turn()])], store)
    second = await store.pointer()
    assert second is not None and second.generation > first.generation


async def test_nothing_to_learn_from_stores_nothing(tmp_path: Path, store: Store) -> None:
    with pytest.raises(TraceError, match="no usable waits in 1 turns: 1 next is end"):
        await train([write(tmp_path / "a.jsonl", [turn(next="end")])], store)
    assert await store.pointer() is None


async def test_a_store_that_is_away_is_told_before_reading(tmp_path: Path) -> None:
    store = Store("redis://127.0.0.1:1/0")
    with pytest.raises(StoreError):
        await train([tmp_path], store)
    await store.close()


@pytest.mark.timeout(600)
@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces beside the repository")
async def test_real_traces_give_the_order_of_tools_that_one_expects(
    valkey: EmbeddedStore, store: Store
) -> None:
    await train([TRACES], store)
    pointer = await store.pointer()
    assert pointer is not None
    model = from_bytes(await store.load_model(pointer.version))
    assert model.samples > 20_000
    forecasts = [
        model.forecast(TENANT, wait, calls(*tools))
        for wait, tools in (
            (Wait.TOOL, ("Read",)),
            (Wait.TOOL, ("Bash",)),
            (Wait.TOOL, ("Task",)),
            (Wait.HUMAN, ()),
        )
    ]
    expected = [forecast.remaining_s[0] for forecast in forecasts]
    assert expected == sorted(expected)
