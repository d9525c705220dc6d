from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cachewise_bench.engine import PolicyRun
from cachewise_bench.measure import medians, summarise
from cachewise_bench.report import as_json, as_table, write_json, write_page
from cachewise_bench.watch import EvictionCount, Sample
from rich.console import Console

from tests.bench.sample_turns import request

POLICY_KEYS = {
    "session_time_mean_s", "session_time_p99_s", "request_p50_s", "request_p99_s",
    "prefix_hit_rate", "evicted_blocks", "recomputed_tokens", "requests", "failed_requests",
    "tool_calls_emitted", "tool_calls_reported", "forecasts_delivered",
}  # fmt: skip


def run(policy: str, latency_s: float, evicted: int) -> PolicyRun:
    requests = tuple(request(s, t, latency_s=latency_s) for s in ("<a>", "b") for t in range(3))
    counters = (None, None) if policy == "stock" else (6, 6)
    result = summarise(requests, EvictionCount(evicted), *counters)
    samples = tuple(Sample(float(i), 0.5, 2.0, evicted * i // 3) for i in range(4))
    return PolicyRun(policy, result, requests, samples)


RUNS = [run("stock", 6.0, 300), run("cachewise", 2.0, 100)]
CONDITIONS = {"seed": 0, "traces": "<script>alert(1)</script>"}


def test_the_json_file_has_every_promised_key(tmp_path: Path) -> None:
    write_json(as_json([RUNS], CONDITIONS), tmp_path / "demo.json")
    result = json.loads((tmp_path / "demo.json").read_text())
    assert set(result) == {"stock", "cachewise", "ratio", "conditions"}
    assert result["stock"].keys() >= POLICY_KEYS and result["cachewise"].keys() >= POLICY_KEYS
    assert result["ratio"]["session_time_mean_s"] == 3.0
    assert result["ratio"]["evicted_blocks"] == 3.0


def test_one_policy_alone_has_no_ratio() -> None:
    assert "ratio" not in as_json([RUNS[:1]], CONDITIONS)


def test_of_several_rounds_the_figures_are_medians_and_the_ratio_is_the_rounds_median() -> None:
    rounds = [
        [run("stock", 6.0, 300), run("cachewise", 2.0, 100)],
        [run("cachewise", 6.0, 100), run("stock", 12.0, 310)],
        [run("stock", 6.0, 290), run("cachewise", 6.0, 0)],
    ]
    result = as_json(rounds, CONDITIONS)
    assert result["stock"]["session_time_mean_s"] == 18.0
    assert result["stock"]["evicted_blocks"] == 300
    assert result["ratio"]["session_time_mean_s"] == 2.0
    assert result["ratio"]["evicted_blocks"] is None
    assert [r["stock"]["evicted_blocks"] for r in result["rounds"]] == [300, 310, 290]


def test_a_fault_of_one_round_is_not_hidden_by_the_others() -> None:
    figures = [{"failed_requests": n, "request_p50_s": None} for n in (0, 0, 2)]
    assert medians(figures) == {"failed_requests": 2, "request_p50_s": None}


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href") and v and v[0] != "#"]


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1]])
def test_the_page_has_five_plots_and_needs_no_other_file(
    tmp_path: Path, runs: list[PolicyRun]
) -> None:
    write_page(runs, as_json([runs], CONDITIONS), tmp_path / "demo.html")
    page = Page()
    page.feed((tmp_path / "demo.html").read_text())
    assert page.tags.count("svg") == 5
    assert page.sources == []
    assert "script" not in page.tags


def test_the_table_shows_both_policies_and_their_ratio() -> None:
    console = Console(width=100, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(as_table(as_json([RUNS], CONDITIONS)))
    text = captured.get()
    assert "stock ÷ cachewise" in text and "3.00" in text
