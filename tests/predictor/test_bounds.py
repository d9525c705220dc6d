"""100,000 tool names and 10,000 tenants take bounded room everywhere, and are counted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from cachewise_predictor import model as model_module
from cachewise_predictor.drift import MAX_WATCHED, DriftWatch
from cachewise_predictor.events import Event, Interval, SessionKey, ToolCall, TurnEnded, Wait
from cachewise_predictor.metrics import MAX_TOOL_LABELS
from cachewise_predictor.model import MAX_KINDS_PER_TENANT, MAX_TENANTS, Group, Model
from cachewise_predictor.model_file import from_bytes, to_bytes
from cachewise_predictor.service import Predictor
from prometheus_client import generate_latest

from .conftest import interval, sample

TENANTS, TOOLS, AT_ONCE = 10_000, 100_000, 20_000


def flood() -> Iterator[Interval]:
    """Each tool once, each tenant ten times."""
    for number in range(TOOLS):
        call = ToolCall(f"tool {number}", f'{{"command": "run{number}"}}')
        yield interval(1.0, call, tenant=f"tenant {number % TENANTS}")


@pytest.fixture(scope="module")
def flooded() -> Model:
    model, waits = Model(), flood()
    while batch := list(itertools.islice(waits, AT_ONCE)):
        model = model.learn(batch)
    return model


def test_the_model_has_bounded_groups_counts_all_and_tells_what_has_no_curve(
    flooded: Model,
) -> None:
    kinds = Counter(g.tenant for g in flooded.rows if g.kind is not None and g.part is None)
    assert flooded.samples == TOOLS
    assert len({group.tenant for group in flooded.rows}) <= MAX_TENANTS + 1
    assert max(kinds.values()) <= MAX_KINDS_PER_TENANT
    assert flooded.crowded_out["tenants"] >= TENANTS - MAX_TENANTS
    assert flooded.crowded_out["kinds"] > 0.9 * TOOLS
    blob = to_bytes(flooded)
    assert len(blob) < 5_000_000
    assert from_bytes(blob).crowded_out == flooded.crowded_out


def test_a_predictor_under_the_flood_stays_bounded(
    flooded: Model, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "_MAX_REMEMBERED", 500)
    predictor.model = flooded
    for number in range(0, TOOLS, 50):
        key = SessionKey(f"tenant {number % TENANTS}", "s")
        calls = (ToolCall(f"tool {number}", "{}"),)
        predictor.report([Event(key, f"t{number}", 0.0, TurnEnded(Wait.TOOL, calls))])
        predictor.report([Event(key, f"u{number}", 0.0, TurnEnded(Wait.HUMAN))])
    assert len(predictor.model._forecasts) <= 500 and len(predictor.model._levels) <= 500
    assert len(predictor._made) == predictor.sessions.open_count <= TENANTS
    tools = set(predictor.metrics._named_tools)
    assert len(tools) == MAX_TOOL_LABELS
    assert generate_latest(predictor.metrics.registry).count(b"\n") < 1_000
    assert sample(predictor, "model_groups_crowded_out", level="kinds") > 0
    assert sample(predictor, "model_groups", level="kinds") <= MAX_TENANTS * MAX_KINDS_PER_TENANT


def test_the_watch_follows_the_most_frequent_tools_only(flooded: Model) -> None:
    watch = DriftWatch()
    watch.follow(flooded.groups_by_samples)
    assert len(watch._seen) == MAX_WATCHED


def test_frequent_tools_and_tenants_have_curves_however_many_rare_ones_came_first() -> None:
    rare = [interval(1.0, f"rare {n}") for n in range(3 * MAX_KINDS_PER_TENANT)]
    rare += [interval(1.0, "x", tenant=f"rare {n}") for n in range(3 * MAX_TENANTS)]
    frequent = [interval(9.0, "Bash", tenant=t) for t in ("acme", "zebra") for _ in range(5)]
    for waits in (rare + frequent, frequent + rare):
        model = Model().learn(waits)
        for tenant in ("acme", "zebra"):
            assert model.row(Group(tenant, Wait.TOOL, "Bash")).samples == 5
        assert model.crowded_out["kinds"] > 0


def test_without_a_flood_nothing_is_crowded_out() -> None:
    model = Model().learn(interval(1.0, "Bash", "Read") for _ in range(50))
    assert not model.crowded_out
    assert model.groups_by_level["kinds"] == 1
