"""`cachewise-predictor models`: the stored models, what differs between two, and the way back.

A rollback is a publication: the old model becomes the current one of a new generation, and every
predictor adopts it within seconds. What was learned since is left out, for it may be the reason.
"""

from __future__ import annotations

from .errors import ModelError
from .events import ToolCall
from .model import Group, Model
from .model_file import from_bytes
from .store import Pointer, Store
from .web import summarise

_MOST_SHOWN = 25


async def list_models(store: Store) -> str:
    """Newest first; the current one is marked."""
    pointer = await store.pointer()
    current = pointer.version if pointer else ""
    lines = []
    for version in await store.versions():
        blob = await store.load_model(version)
        mark = "*" if version == current else " "
        lines.append(f"{mark} {version:<28} {len(blob) / 1e6:8.2f} MB  {_content(blob)}")
    return "\n".join(lines) or "no models yet: `cachewise-predictor train`, or report events"


async def show_model(store: Store, version: str) -> str:
    """Its largest groups."""
    model = await _load(store, version)
    lines = [
        f"{'tenant':<12} {'wait':<8} {'kind':<24} {'n':>7} {'P50 s':>9} {'P90 s':>9} {'P99 s':>9}"
    ]
    for group in summarise(model, _MOST_SHOWN):
        names = f"{group.tenant or '(all)':<12.12} {group.wait:<8} {group.tool or '':<24.24}"
        lines.append(
            f"{names} {group.n:>7} {group.p50_s:>9.2f} {group.p90_s:>9.2f} {group.p99_s:>9.2f}"
        )
    return "\n".join(lines)


async def diff_models(store: Store, first: str, second: str) -> str:
    """How the waits of the groups differ, the largest change of the median first."""
    old, new = await _load(store, first), await _load(store, second)
    groups = {g for g in (*old.rows, *new.rows) if g.part is None and g.tenant is not None}
    changes = [(group, _median(old, group), _median(new, group)) for group in groups]
    changes.sort(key=lambda change: -max(change[1] / change[2], change[2] / change[1]))
    lines = [f"{'tenant':<12} {'wait':<8} {'kind':<24} {'n':>7} {'n':>7} {'P50 s':>9} {'P50 s':>9}"]
    for group, before_s, after_s in changes[:_MOST_SHOWN]:
        names = f"{group.tenant:<12.12} {group.wait.value:<8} {group.kind or '':<24.24}"
        counts = f"{old.row(group).samples:>7} {new.row(group).samples:>7}"
        lines.append(f"{names} {counts} {before_s:>9.2f} {after_s:>9.2f}")
    return "\n".join(lines)


async def roll_back(store: Store, version: str) -> str:
    """Makes a stored model the current one again. Raises ModelError if it is gone or broken."""
    model = await _load(store, version)
    previous = await store.pointer()
    pointer = Pointer(
        version=version,
        generation=previous.generation + 1 if previous else 0,
        position=await store.last_position(),
    )
    if not await store.publish_model(pointer, await store.load_model(version)):
        raise ModelError("another model was published meanwhile: look, and try again")
    return f"model {model.version} is the current one; predictors adopt it within seconds"


async def _load(store: Store, version: str) -> Model:
    blob = await store.load_model(version)
    if not blob:
        raise ModelError(f"no model {version!r}: `cachewise-predictor models list` shows them")
    return from_bytes(blob)


def _content(blob: bytes) -> str:
    try:
        model = from_bytes(blob)
    except ModelError as error:
        return f"unusable: {error}"
    clusters = sum(len(found.centroids) for found in model.clusters.values())
    return f"{model.samples} intervals, {clusters} clusters"


def _median(model: Model, group: Group) -> float:
    calls = () if group.kind is None else (ToolCall(group.kind),)
    return model.forecast(group.tenant or "", group.wait, calls).quantiles[0].wait_s
