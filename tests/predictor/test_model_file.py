"""A model survives being stored; a damaged one is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cachewise_predictor.errors import ModelError
from cachewise_predictor.events import Interval, ToolCall, Wait
from cachewise_predictor.model import Model
from cachewise_predictor.model_file import from_bytes, to_bytes
from safetensors.numpy import load, save

from .conftest import interval


def sample() -> list[Interval]:
    return [
        interval(3.0, "Bäsh\x00'\"", tenant=""),
        interval(9.0, wait=Wait.HUMAN, is_finished=False),
        *(interval(i / 7, ToolCall("Ask", f"{('alpha', 'beta')[i % 2]} {i}")) for i in range(90)),
    ]


def fitted() -> Model:
    return Model.fit(sample()).learn(sample())


def test_a_model_survives_being_stored() -> None:
    model = fitted()
    restored = from_bytes(to_bytes(model))
    assert restored.version == model.version
    assert restored.clusters.keys() == model.clusters.keys() == {("acme", "Ask")}
    for calls in ((), (ToolCall("Ask", "alpha 3"),), (ToolCall("Ask", "beta"), ToolCall("x"))):
        forecast = restored.forecast("acme", Wait.TOOL, calls)
        before = model.forecast("acme", Wait.TOOL, calls)
        assert (forecast.elapsed_s, forecast.remaining_s) == (before.elapsed_s, before.remaining_s)
        assert forecast.quantiles == before.quantiles
        assert (forecast.source, forecast.sample_count) == (before.source, before.sample_count)
        assert forecast.model_version == before.model_version
    assert from_bytes(to_bytes(Model())).version == "prior"


def test_reading_a_large_model_lets_others_run_in_between() -> None:
    model = Model().learn(interval(1.0, ToolCall(f"x{n % 9}", str(n * "y"))) for n in range(2_000))
    pauses = list[None]()
    restored = from_bytes(to_bytes(model), lambda: pauses.append(None))
    assert restored.version == model.version
    assert len(pauses) >= len(model.rows) / 400 > 4


def test_arguments_are_not_stored_as_they_are() -> None:
    secret = interval(1.0, ToolCall("Bash", '{"command": "deploy --to zebra-quagga-okapi"}'))
    assert b"okapi" not in to_bytes(Model().learn([secret]))


def changed(**changes: Any) -> bytes:
    arrays = load(to_bytes(fitted()))
    blob: bytes = save(arrays | {name: change(arrays[name]) for name, change in changes.items()})
    return blob


def note(**changes: Any) -> Any:
    def change(old: Any) -> Any:
        first, *groups = old.tobytes().split(b"\n")
        lines = [json.dumps(json.loads(first) | changes).encode(), *groups]
        return np.frombuffer(b"\n".join(lines), np.uint8)

    return change


def damaged_models() -> list[bytes]:
    blob = to_bytes(fitted())
    return [
        b"",
        b"x" * 100,
        blob[:-9],
        changed(count=lambda a: a - 5),
        changed(count=lambda a: a.astype(np.float64)),
        changed(row=lambda a: a + 1),
        changed(row=lambda a: a[:-1]),
        changed(column=lambda a: a + 60),
        changed(grid_s=lambda a: a * 2),
        changed(note=lambda a: np.zeros(5, np.uint8)),
        changed(note=lambda a: np.frombuffer(b"[1]", np.uint8)),
        changed(note=note(format="cachewise-model/1")),
        changed(note=note(crowded_out=[])),
        changed(note=lambda a: np.frombuffer(a.tobytes().split(b"\n")[0], np.uint8)),
        changed(note=lambda a: np.frombuffer(a.tobytes() + b"\n[[1]]", np.uint8)),
        changed(note=note(clusters=[["acme", "Ask", ["one"]]])),
        changed(**{"idf.0": lambda a: a * np.nan}),
    ]


@pytest.mark.parametrize("blob", damaged_models())
def test_a_damaged_model_is_refused(blob: bytes) -> None:
    with pytest.raises(ModelError):
        from_bytes(blob)
