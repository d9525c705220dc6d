"""What was replayed for the benchmarks: figures by number of sessions and policy, means over seeds.

A policy is of one of four kinds: a rival (stock vLLM and published policies), the product (ours and
the same with levers off), an oracle (it sees the future), or an experiment (the product with
forecasts that are wrong).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RIVAL, PRODUCT, ORACLE, EXPERIMENT = "rival", "product", "oracle", "experiment"
STOCK, OURS, NO_FORECAST, FAIR = "vllm", "ours", "ours-no-forecast", "ours-fair"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """by_count: for each number of sessions the policies' rows, means over the seeds."""

    by_count: Mapping[int, Mapping[str, Row]]
    table_counts: tuple[int, ...]
    """The numbers of sessions with all policies."""

    @classmethod
    def of(cls, rows: Sequence[Row], table_counts: Sequence[int]) -> Figures:
        """rows: those of replays, with the policy's kind."""
        grouped: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            grouped[row["sessions"]][row["policy"]].append(row)
        means = {
            count: {policy: _mean(some) for policy, some in by_policy.items()}
            for count, by_policy in sorted(grouped.items())
        }
        return cls(means, tuple(table_counts))

    def get(self, count: int, policy: str) -> Row | None:
        return self.by_count.get(count, {}).get(policy)

    def ratio(self, count: int, of: str, to: str, key: str) -> float | None:
        """of's figure ÷ to's; None where one was not replayed or is 0."""
        a, b = self.get(count, of), self.get(count, to)
        return float(a[key] / b[key]) if a and b and b[key] else None

    def of_kind(self, count: int, kind: str) -> list[Row]:
        return [row for row in self.by_count[count].values() if row["kind"] == kind]


def _mean(rows: Sequence[Row]) -> Row:
    """One row whose numbers are the means."""
    return {
        key: value if isinstance(value, str) else float(np.mean([row[key] for row in rows]))
        for key, value in rows[0].items()
    }
