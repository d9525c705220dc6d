from __future__ import annotations

import math

from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import (
    ForecastUpdate,
    SessionTable,
    anonymous_owner,
    everybodys_owner,
)

CURVE = Forecast((0.0, 10.0), (5.0, 50.0))


def away(table: SessionTable, key: str, arrived: float, left: float) -> None:
    table.request_arrived(key, arrived)
    table.request_left(key, left)


def test_a_forecast_ranks_an_idle_session_and_ends_with_its_next_request() -> None:
    table = SessionTable(10)
    away(table, "a", 0.0, 1.0)
    assert not table.can_rank
    assert table.apply(ForecastUpdate("a", 1.0, CURVE)) == ""
    assert table.can_rank and table.time_to_reuse("a", 11.0) == 50.0
    table.request_arrived("a", 12.0)
    assert not table.can_rank and table.time_to_reuse("a", 12.0) == 0.0


def test_forecasts_that_come_too_late_or_for_nobody_are_not_taken() -> None:
    table = SessionTable(10)
    away(table, "a", 0.0, 1.0)
    table.request_arrived("a", 2.0)
    assert table.apply(ForecastUpdate("a", 1.0, CURVE)) == "returned"
    table.request_left("a", 3.0)
    assert table.apply(ForecastUpdate("a", 1.0, CURVE)) == "stale"
    assert table.apply(ForecastUpdate("b", 1.0, CURVE)) == "unknown"
    assert not table.can_rank


def test_an_ended_session_is_never_wanted_again_until_it_comes_back() -> None:
    table = SessionTable(10)
    away(table, "a", 0.0, 1.0)
    table.apply(ForecastUpdate("a", 1.0, None, ended=True))
    assert table.time_to_reuse("a", 2.0) == math.inf
    away(table, "a", 3.0, 4.0)
    assert table.time_to_reuse("a", 5.0) == 1.0


def test_without_a_forecast_who_is_away_longest_is_wanted_last() -> None:
    table = SessionTable(10)
    for i, key in enumerate("abc"):
        away(table, key, float(i), i + 0.5)
    order = sorted("abc", key=lambda k: -table.time_to_reuse(k, 100.0))
    assert order == ["a", "b", "c"]
    assert table.time_to_reuse(anonymous_owner(20.0), 100.0) > table.time_to_reuse("c", 40.0)


def test_a_session_with_two_requests_is_idle_when_both_have_left() -> None:
    table = SessionTable(10)
    table.request_arrived("a", 0.0)
    away(table, "a", 1.0, 2.0)
    assert table.time_to_reuse("a", 9.0) == 0.0
    table.request_left("a", 3.0)
    table.request_left("a", 4.0)  # one too many is no harm
    assert table.time_to_reuse("a", 9.0) == 6.0


def test_a_flood_of_ids_is_bounded_and_drops_the_session_idle_longest() -> None:
    table = SessionTable(100)
    table.request_arrived("running", 0.0)
    away(table, "old", 0.0, 0.1)
    for i in range(10_000):
        away(table, f"flood{i}", 1.0 + i, 1.5 + i)
    assert len(table) == 100
    assert "running" in table and "old" not in table
    assert table.forgotten[0] == "old"
    assert table.time_to_reuse("old", 1e6) == math.inf


def test_a_clock_that_jumps_back_gives_sane_ranks() -> None:
    table = SessionTable(10)
    away(table, "a", 100.0, 101.0)
    table.apply(ForecastUpdate("a", 101.0, CURVE))
    assert table.time_to_reuse("a", 50.0) == 5.0


def test_a_system_prompt_that_nobody_has_used_for_ten_minutes_ages_like_any_other_block() -> None:
    table = SessionTable(10)
    assert table.time_to_reuse(everybodys_owner(0.0), 599.0) == 0.0
    assert table.time_to_reuse(everybodys_owner(0.0), 900.0) == 900.0
