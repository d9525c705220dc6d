"""When a training is due."""

from __future__ import annotations

import pytest
from cachewise_predictor.training import Schedule

SCHEDULE = Schedule(period_s=600.0, least_new=10, least_pause_s=5.0, most_busy=0.1)


@pytest.mark.parametrize(
    ("new", "known", "has_changes", "since_s", "took_s", "reason"),
    [
        (0, 0, False, 1e9, 0.0, None),
        (0, 100, True, 1e9, 0.0, None),
        (1, 100, False, 599.0, 0.0, None),
        (1, 100, False, 600.0, 0.0, "period"),
        (9, 0, False, 10.0, 0.0, None),
        (10, 0, False, 10.0, 0.0, "volume"),
        (99, 1_000, False, 10.0, 0.0, None),
        (100, 1_000, False, 10.0, 0.0, "volume"),
        (100, 1_000, False, 4.0, 0.0, None),
        (100, 1_000, False, 99.0, 10.0, None),
        (100, 1_000, False, 100.0, 10.0, "volume"),
        (1, 1_000, True, 0.0, 10.0, "drift"),
    ],
)
def test_a_training_is_due_by_drift_volume_or_period(
    new: int, known: int, has_changes: bool, since_s: float, took_s: float, reason: str | None
) -> None:
    assert SCHEDULE.due(new, known, has_changes, since_s, took_s) == reason
