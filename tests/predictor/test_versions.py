"""Stored models are listed, compared and restored."""

from __future__ import annotations

import pytest
from cachewise_predictor.errors import ModelError
from cachewise_predictor.events import Position, Wait
from cachewise_predictor.model import Group, Model
from cachewise_predictor.model_file import to_bytes
from cachewise_predictor.published import ModelInfo, Pointer
from cachewise_predictor.store import Store
from cachewise_predictor.versions import diff_models, list_models, roll_back, show_model
from cachewise_predictor.window import LeftOut

from .conftest import interval


async def publish(
    store: Store, model: Model, generation: int, blob: bytes | None = None, position: int = 0
) -> str:
    info = ModelInfo(
        "volume",
        1_796_083_200.0,
        Position(position, 0),
        {Group("acme", Wait.TOOL, "Ba\x1bsh"): Position(1_796_083_200_000, 0)},
        score=0.25,
        serving_score=0.5,
    )
    pointer = Pointer(model.version, generation, Position(position, 0))
    after = generation - 1 if generation > 1 else None
    assert await store.publish_model(pointer, blob or to_bytes(model), info, after)
    return model.version


async def test_models_are_listed_newest_first_and_the_current_one_is_marked(store: Store) -> None:
    assert "no models yet" in await list_models(store)
    old = await publish(store, Model().learn([interval(1.0, "Bash")]), 1)
    new = await publish(store, Model().learn([interval(2.0, "Bash")] * 2), 2)
    lines = (await list_models(store)).splitlines()
    assert lines[0].split()[:5] == ["*", new, "2026-12-01", "00:00", "volume"]
    assert lines[1].split()[0] == old
    assert "2 intervals, 0 clusters" in lines[0]


async def test_a_rollback_makes_an_old_model_current_and_leaves_out_what_came_after_it(
    store: Store,
) -> None:
    await store.append_recorded([interval(1.0, "Bash")] * 3)
    old = await publish(store, Model().learn([interval(1.0, "Bash")]), 1, position=7)
    await publish(store, Model().learn([interval(2.0, "Bash")]), 2, position=9)
    assert old in await roll_back(store, old)
    assert await store.pointer() == Pointer(old, 3, Position(7, 0))
    assert await store.left_out() == [LeftOut(None, Position(7, 0), await store.last_position())]
    assert (await list_models(store)).splitlines()[1].startswith(f"* {old}")


async def test_an_unknown_or_broken_model_is_refused(store: Store) -> None:
    current = await publish(store, Model().learn([interval(1.0, "Bash")]), 1)
    broken = await publish(store, Model().learn([interval(3.0, "Bash")]), 2, blob=b"x")
    assert "unusable" in await list_models(store)
    for version in ("nothing", broken):
        with pytest.raises(ModelError):
            await roll_back(store, version)
    await roll_back(store, current)


async def test_groups_are_shown_and_compared(store: Store) -> None:
    fast = await publish(store, Model().learn(interval(1.0, "Bash") for _ in range(50)), 1)
    slow = await publish(store, Model().learn(interval(90.0, "Bash") for _ in range(50)), 2)
    shown = await show_model(store, fast)
    assert "2026-12-01 00:00 (volume); mean CRPS on reserved waits 0.2500" in shown
    assert "acme Ba?sh: without its waits before 2026-12-01 00:00" in shown
    assert "Bash" in shown
    row = (await diff_models(store, fast, slow)).splitlines()[1].split()
    assert row[:3] == ["acme", "tool", "Bash"]
    assert float(row[-2]) < 2 < 50 < float(row[-1])
