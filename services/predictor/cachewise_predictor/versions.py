"""`cachewise-predictor models`: the stored models, what differs between two, and the way back.

A rollback makes an old model the current one, and every predictor adopts it within seconds. What
came since that model was trained may be the reason: no later model learns from it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from .errors import ModelError
from .events import ToolCall
from .model import Group, Model
from .model_file import from_bytes
from .published import ModelInfo, Pointer
from .store import Store
from .web import summarise
from .window import LeftOut

_MOST_SHOWN = 25


async def list_models(store: Store) -> str:
    """Newest first; the current one is marked."""
    pointer = await store.pointer()
    current = pointer.version if pointer else ""
    lines = []
    for version in await store.versions():
        blob, info = await store.load_model(version), await store.model_info(version)
        mark = "*" if version == current else " "
        lines.append(
            f"{mark} {version:<28} {_origin(info)} {len(blob) / 1e6:6.2f} MB  {_content(blob)}"
        )
    return "\n".join(lines) or "no models yet: `cachewise-predictor train`, or report events"


async def show_model(store: Store, version: str) -> str:
    """Its largest groups."""
    model, info = await _load(store, version), await store.model_info(version)
    lines = [
        *_story(info),
        f"{'tenant':<12} {'wait':<8} {'kind':<24} {'n':>7} {'P50 s':>9} {'P90 s':>9} {'P99 s':>9}",
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
    model, info = await _load(store, version), await store.model_info(version)
    current, last = await store.pointer(), await store.last_position()
    trained_to = info.position if info else last
    generation = current.generation if current else 0
    pointer = Pointer(version, generation + 1, trained_to)
    if not await store.go_back(pointer, LeftOut(None, trained_to, last), after=generation):
        raise ModelError("another model was published meanwhile: look, and try again")
    return f"model {model.version} is the current one; predictors adopt it within seconds"


async def _load(store: Store, version: str) -> Model:
    blob = await store.load_model(version)
    if not blob:
        raise ModelError(f"no model {version!r}: `cachewise-predictor models list` shows them")
    return from_bytes(blob)


def _origin(info: ModelInfo | None) -> str:
    if info is None:
        return f"{'?':<16} {'?':<8}"
    return f"{_time(info.trained_at):<16} {info.reason:<8}"


def _story(info: ModelInfo | None) -> list[str]:
    """How the model came to be."""
    if info is None:
        return []
    lines = [f"trained {_time(info.trained_at)} ({info.reason})"]
    if info.score is not None and info.serving_score is not None:
        lines[0] += (
            f"; mean CRPS on reserved waits {info.score:.4f}, of the model before it "
            f"{info.serving_score:.4f}"
        )
    for group, since in info.changes.items():
        what = f"{group.tenant} {group.kind or group.wait.value}"
        lines.append(f"{what}: without its waits before {_time(since.ms / 1_000)}")
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


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
