"""The table of a replay, for a terminal of 100 columns; all figures are in the JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

Row = Mapping[str, Any]

CAPTION = "session: sum of its requests' latencies; recompute: computed ÷ new tokens"


def table(rows: Sequence[Row]) -> Table:
    """In sections of equal N and seed, each compared with its first policy."""
    made = Table(title="vLLM's scheduler on a virtual clock", caption=CAPTION, box=box.SIMPLE_HEAD)
    made.add_column("policy", no_wrap=True)
    for name in (
        "\nN",
        "\nseed",
        "session\nmean s",
        "first\n÷ it",
        "request\nP99 s",
        "recom-\npute",
        "evicted\nblocks",
        "longest\nwait s",
    ):
        made.add_column(name, justify="right", no_wrap=True)
    first = rows[0]
    for row in rows:
        if (row["sessions"], row["seed"]) != (first["sessions"], first["seed"]):
            made.add_section()
            first = row
        made.add_row(*_cells(row, first))
    return made


def _cells(row: Row, first: Row) -> tuple[str, ...]:
    return (
        row["policy"],
        str(row["sessions"]),
        str(row["seed"]),
        f"{row['session_time_mean_s']:,.1f}",
        f"{first['session_time_mean_s'] / row['session_time_mean_s']:.2f}",
        f"{row['request_p99_s']:,.1f}",
        f"{row['recompute_ratio']:.2f}",
        f"{row['evicted_blocks']:,}",
        f"{row['max_wait_s']:,.1f}",
    )
