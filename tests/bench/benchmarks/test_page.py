from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from cachewise_bench.benchmarks.figures import EXPERIMENT, ORACLE, PRODUCT, RIVAL, Figures
from cachewise_bench.benchmarks.page import page
from cachewise_bench.benchmarks.plots import write_plots

from .rows import NO_OFFLOAD, figures, row

CONDITIONS = {"shown": {"seeds": "0"}, "commands": ["make bench"]}


def sample() -> Figures:
    """Two numbers of sessions with tables, one without."""
    rows = [
        row(policy, count, kind, session_time_mean_s=seconds * count)
        for count in (5, 20, 40)
        for policy, kind, seconds in (
            ("vllm", RIVAL, 10.0), ("vllm-prefix", RIVAL, 5.0), ("cachewise-c100", RIVAL, 4.0),
            ("ours", PRODUCT, 2.0), ("belady", ORACLE, 1.0), ("ours-stale", EXPERIMENT, 3.0),
        )
    ]  # fmt: skip
    return Figures.of(rows, (20, 40))


def table(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table below the heading, without its rule."""
    lines = text[text.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    stop = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:stop]]
    return [rows[0], *rows[2:]]


def test_each_table_has_the_fastest_first_and_compares_with_stock() -> None:
    head, *rows = table(page(sample(), NO_OFFLOAD, CONDITIONS, []), "## 40 sessions at once")
    assert head[:3] == ["policy", "session time s", "stock ÷ it"]
    assert [row[:3] for row in rows] == [
        ["belady\\*", "40.0", "10.00"],
        ["**ours**", "80.0", "5.00"],
        ["cachewise-c100", "160", "2.50"],
        ["vllm-prefix", "200", "2.00"],
        ["vllm", "400", "1.00"],
    ]
    assert all(len(row) == len(head) for row in rows)


def test_the_papers_ratios_stand_beside_ours() -> None:
    head, *rows = table(page(sample(), NO_OFFLOAD, CONDITIONS, []), "## The paper's figures")
    assert head == ["", "paper", "N = 20", "N = 40"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["session time, stock ÷ CacheWise"] == ["2.7-3.5", "2.50", "2.50"]
    assert by_name["session time, order alone ÷ CacheWise"] == ["1.7-2", "1.25", "1.25"]


def test_with_host_memory_there_is_a_table_of_its_own() -> None:
    tier = {"offload_gib": 256.0, "loaded_blocks": 9_876, "session_time_mean_s": 80.0}
    offload = figures(
        row("vllm", 30, **tier), row("ours", 30, PRODUCT, **tier | {"loaded_blocks": 500})
    )
    head, *rows = table(page(sample(), offload, CONDITIONS, []), "## 30 sessions with 256 GiB")
    assert (head[2], head[-1]) == ("stock ÷ it", "loaded blocks")
    assert [(found[0], found[2], found[-1]) for found in rows] == [
        ("vllm", "1.00", "9,876"),
        ("**ours**", "1.00", "500"),
    ]


def test_conditions_commands_plots_and_bad_news_are_on_the_page() -> None:
    text = page(sample(), NO_OFFLOAD, CONDITIONS, ["benchmarks-frontier.svg"])
    assert "- seeds: 0" in text and "\nmake bench\n" in text
    assert "![benchmarks-frontier.svg](benchmarks-frontier.svg)" in text
    assert "- 20 sessions with forecasts that are wrong" in text


def test_a_page_without_stock_or_the_paper_is_written_too() -> None:
    text = page(figures(row("ours", kind=PRODUCT)), NO_OFFLOAD, CONDITIONS, [])
    assert table(text, "## 20 sessions")[1][:3] == ["**ours**", "100", "–"]


def test_the_plots_are_svg_and_the_same_each_time(tmp_path: Path) -> None:
    names = write_plots(sample(), tmp_path, "benchmarks")
    first = [(tmp_path / name).read_bytes() for name in names]
    assert names == ["benchmarks-against-n.svg", "benchmarks-frontier.svg"]
    for picture in first:
        assert ET.fromstring(picture).tag.endswith("svg")
        assert b"cachewise-c100" in picture
    write_plots(sample(), tmp_path, "benchmarks")
    assert [(tmp_path / name).read_bytes() for name in names] == first


def test_figures_are_means_over_seeds() -> None:
    made = figures(row("vllm", max_wait_s=10.0), row("vllm", seed=1, max_wait_s=30.0))
    found = made.get(20, "vllm")
    assert found is not None and found["max_wait_s"] == 20.0
    assert made.ratio(20, "vllm", "ours", "max_wait_s") is None
