"""Stored models are listed, compared and restored."""

from __future__ import annotations

import pytest
from cachewise_predictor.errors import ModelError
from cachewise_predictor.model import Model
from cachewise_predictor.model_file import to_bytes
from cachewise_predictor.store import START, Pointer, Store
from cachewise_predictor.versions import diff_models, list_models, roll_back, show_model

from .conftest import interval


async def publish(store: Store, model: Model, generation: int) -> str:
    await store.publish_model(Pointer(model.version, generation, START), to_bytes(model))
    return model.version


async def test_models_are_listed_newest_first_and_the_current_one_is_marked(store: Store) -> None:
    assert "no models yet" in await list_models(store)
    old = await publish(store, Model().learn([interval(1.0, "Bash")]), 1)
    new = await publish(store, Model().learn([interval(2.0, "Bash")] * 2), 2)
    lines = (await list_models(store)).splitlines()
    assert [line.split()[:2] for line in lines] == [["*", new], [old, "0.00"]]
    assert "2 intervals, 0 clusters" in lines[0]


async def test_a_rollback_is_a_new_generation_of_an_old_model(store: Store) -> None:
    old = await publish(store, Model().learn([interval(1.0, "Bash")]), 1)
    await publish(store, Model().learn([interval(2.0, "Bash")]), 7)
    assert old in await roll_back(store, old)
    assert await store.pointer() == Pointer(old, 8, START)


async def test_an_unknown_or_broken_model_is_refused(store: Store) -> None:
    current = await publish(store, Model().learn([interval(1.0, "Bash")]), 1)
    await store.publish_model(Pointer("broken", 1, START), b"x")
    assert "unusable" in await list_models(store)
    for version in ("nothing", "broken"):
        with pytest.raises(ModelError):
            await roll_back(store, version)
    await roll_back(store, current)


async def test_groups_are_shown_and_compared(store: Store) -> None:
    fast = await publish(store, Model().learn(interval(1.0, "Bash") for _ in range(50)), 1)
    slow = await publish(store, Model().learn(interval(90.0, "Bash") for _ in range(50)), 2)
    assert "Bash" in await show_model(store, fast)
    row = (await diff_models(store, fast, slow)).splitlines()[1].split()
    assert row[:3] == ["acme", "tool", "Bash"]
    assert float(row[-2]) < 2 < 50 < float(row[-1])
