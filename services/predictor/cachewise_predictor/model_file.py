"""A model as bytes: safetensors with counts and centroids, and notes in JSON lines.

Most groups have a few intervals, so the counts are stored as (row, column, count); the columns are
the bins of finished waits and then those of censored ones. Groups are written in lines of a few, so
that reading a large model can let other threads run between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .clusters import Clusters
from .errors import ModelError
from .events import Wait
from .model import Group, Model, Row
from .survival import BINS, GRID_S

FORMAT = "cachewise-model/3"
_PER_LINE = 400
_COLUMNS = 2 * BINS + 1
_DAMAGED = "its numbers are damaged: train again, or restore an older one"


def to_bytes(model: Model) -> bytes:
    counts = np.array([np.concatenate(row) for row in model.rows.values()], np.int64)
    # safetensors writes wrong numbers for arrays with gaps, which nonzero gives.
    row, column = map(np.ascontiguousarray, np.nonzero(counts.reshape(-1, _COLUMNS)))
    note = {
        "format": FORMAT,
        "digest": model.digest,
        "crowded_out": model.crowded_out,
        "clusters": [[*key, c.vocabulary] for key, c in model.clusters.items()],
    }
    groups = [[g.tenant, g.wait.value, g.kind, g.part] for g in model.rows]
    lines = [groups[start : start + _PER_LINE] for start in range(0, len(groups), _PER_LINE)]
    arrays = {
        "note": np.frombuffer("\n".join(map(json.dumps, [note, *lines])).encode(), np.uint8),
        "grid_s": GRID_S,
        "row": row,
        "column": column,
        "count": counts[row, column] if len(row) else row,
    }
    for index, clusters in enumerate(model.clusters.values()):
        arrays[f"idf.{index}"] = clusters.idf
        arrays[f"centroids.{index}"] = np.ascontiguousarray(clusters.centroids)
        arrays[f"reach_sq.{index}"] = clusters.reach_sq
    blob: bytes = save(arrays)
    return blob


def from_bytes(blob: bytes, pause: Callable[[], None] = lambda: None) -> Model:
    """Raises ModelError for anything that `to_bytes` of this version does not write.

    pause: called after every millisecond of work or so.
    """
    try:
        arrays = load(blob)
        first, *lines = arrays["note"].tobytes().split(b"\n")
        note = json.loads(first)
        if note["format"] != FORMAT or not np.array_equal(arrays["grid_s"], GRID_S):
            raise ModelError(f"made by another version (format {note['format']!r}): train again")
        clusters = {
            (tenant, kind): _clusters(arrays, index, vocabulary)
            for index, (tenant, kind, vocabulary) in enumerate(note["clusters"])
        }
        groups = _groups(lines, pause)
        counts = _counts(arrays, len(groups))
        digest = int(note["digest"])
        crowded_out = {str(level): int(count) for level, count in note["crowded_out"].items()}
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"not a model: {error}") from None
    rows = {}
    for number, group in enumerate(groups):
        rows[group] = Row(counts[number, :BINS], counts[number, BINS:])
        if number % _PER_LINE == 0:
            pause()
    return Model(rows, clusters, digest, crowded_out)


def _groups(lines: list[bytes], pause: Callable[[], None]) -> list[Group]:
    groups = []
    for line in lines:
        groups += [Group(tenant, Wait(w), kind, part) for tenant, w, kind, part in json.loads(line)]
        pause()
    return groups


def _counts(arrays: dict[str, Any], groups: int) -> Any:
    row, column, count = arrays["row"], arrays["column"], arrays["count"]
    whole = all(a.dtype == np.int64 and a.shape == row.shape and a.ndim == 1 for a in (row, column))
    if not whole or count.dtype != np.int64 or count.shape != row.shape:
        raise ModelError(_DAMAGED)
    if len(row) and (
        min(row.min(), column.min()) < 0
        or count.min() < 1
        or row.max() >= groups
        or column.max() >= _COLUMNS
    ):
        raise ModelError(_DAMAGED)
    counts = np.zeros((groups, _COLUMNS), np.int64)
    counts[row, column] = count
    return counts


def _clusters(arrays: dict[str, Any], index: int, vocabulary: list[str]) -> Clusters:
    idf, centroids = arrays[f"idf.{index}"], arrays[f"centroids.{index}"]
    reach_sq = arrays[f"reach_sq.{index}"]
    shapes = (idf.shape, centroids.shape, reach_sq.shape)
    words = len(vocabulary)
    if shapes != ((words,), (len(reach_sq), words), (len(reach_sq),)) or not len(reach_sq):
        raise ModelError(_DAMAGED)
    if not all(np.isfinite(numbers).all() for numbers in (idf, centroids, reach_sq)):
        raise ModelError(_DAMAGED)
    return Clusters(tuple(map(str, vocabulary)), idf, np.asfortranarray(centroids), reach_sq)
