"""The model: counts of intervals per tenant and tool, and the curves that follow from them.

A model never changes. `learn` gives a new one with more intervals in it; `forecast` computes a
curve when it is first asked for and remembers it. Levels, each shrunk towards the next
(survival.hazards):

    tool of a tenant   ->  all tools of the tenant, tilted by what is published on its kind
    all of a tenant    ->  all tenants
    all tenants        ->  the prior (prior.py)

Waits for a person, and those after a cut or aborted turn, have curves of their own without a tool
level. A turn's parallel calls are forecast as the maximum of their curves; when it is over, its
wait counts for the slowest of them.

Counts are additive, so a model is small (one row of 63 numbers per tool) and the order of
intervals does not matter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from . import prior, survival
from .errors import ModelError
from .events import Forecast, Interval, Quantile, Source, ToolCall, Wait
from .survival import BINS, GRID_S, Counts, Floats

FORMAT = "cachewise-model/1"
PROBABILITIES = (0.5, 0.9, 0.99)
MAX_TENANTS = 200
MAX_TOOLS_PER_TENANT = 200
"""A tool or tenant beyond these counts for its parent level only."""

_MAX_REMEMBERED = 4_096


class Group(NamedTuple):
    """Whose intervals a row of counts holds.

    tenant None: all tenants; tool None: all tools, or a wait without one.
    """

    tenant: str | None
    wait: Wait
    tool: str | None = None


class Row(NamedTuple):
    """Intervals of a group: BINS counts by bin of the end, BINS + 1 of censored ones by bins
    survived.
    """

    finished: Counts
    censored: Counts

    @property
    def samples(self) -> int:
        return int(self.finished.sum() + self.censored.sum())


_EMPTY = Row(np.zeros(BINS, np.int64), np.zeros(BINS + 1, np.int64))
_Turn = tuple[str, Wait, tuple[str, ...]]
_Level = tuple[Floats, Source, int]
"""Hazards, the most specific level with data in them, and its sample count."""


@dataclass(frozen=True, eq=False)
class Model:
    rows: Mapping[Group, Row] = field(default_factory=dict)
    _forecasts: dict[_Turn, Forecast] = field(default_factory=dict, repr=False)

    def forecast(self, tenant: str, wait: Wait, calls: tuple[ToolCall, ...]) -> Forecast:
        """The curve of a wait that begins now.

        calls: those of the turn, for a TOOL wait.
        """
        tools = sorted(call.name for call in calls)
        turn = (tenant, wait, tuple(tools) if wait is Wait.TOOL else ())
        known = self._forecasts.get(turn)
        if known is None:
            if len(self._forecasts) >= _MAX_REMEMBERED:
                self._forecasts.clear()
            known = self._forecasts[turn] = self._make_forecast(turn)
        return known

    def learn(self, intervals: Iterable[Interval]) -> Model:
        """A model with these intervals added; this one stays as it is."""
        rows, changed = dict(self.rows), dict[Group, Row]()
        tools_of = Counter(group.tenant for group in rows if group.tool is not None)
        tenants = {group.tenant for group in rows}
        for interval in intervals:
            for group in self._groups(interval):
                if group not in changed:
                    if group not in rows and not _has_room(group, tenants, tools_of):
                        continue
                    old = rows.get(group, _EMPTY)
                    rows[group] = changed[group] = Row(old.finished.copy(), old.censored.copy())
                _count(changed[group], interval)
        return Model(rows)

    @cached_property
    def samples(self) -> int:
        """Intervals in the model."""
        return sum(self.row(Group(None, wait)).samples for wait in Wait)

    @cached_property
    def version(self) -> str:
        """Names the content: number of samples and a digest of all counts; "prior" without data."""
        if not self.rows:
            return "prior"
        digest = blake2b(digest_size=4)
        for group in sorted(self.rows, key=_as_json):
            row = self.rows[group]
            digest.update(
                _as_json(group).encode() + row.finished.tobytes() + row.censored.tobytes()
            )
        return f"{self.samples}-{digest.hexdigest()}"

    def row(self, group: Group) -> Row:
        return self.rows.get(group, _EMPTY)

    def to_bytes(self) -> bytes:
        """safetensors: a count matrix per kind, the grid, and the groups as JSON text."""
        groups = list(self.rows)
        note = json.dumps({"format": FORMAT, "groups": [_as_list(g) for g in groups]}).encode()
        blob: bytes = save(
            {
                "note": np.frombuffer(note, np.uint8),
                "grid_s": GRID_S,
                "finished": _matrix([self.rows[g].finished for g in groups], BINS),
                "censored": _matrix([self.rows[g].censored for g in groups], BINS + 1),
            }
        )
        return blob

    @classmethod
    def from_bytes(cls, blob: bytes) -> Model:
        """Raises ModelError for anything that `to_bytes` of this version does not write."""
        try:
            arrays = load(blob)
            note = json.loads(arrays["note"].tobytes())
            groups = [Group(tenant, Wait(wait), tool) for tenant, wait, tool in note["groups"]]
            finished, censored = arrays["finished"], arrays["censored"]
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ModelError(f"not a model: {error}") from None
        if note.get("format") != FORMAT or not np.array_equal(arrays.get("grid_s", ()), GRID_S):
            raise ModelError(
                f"made by another version (format {note.get('format')!r}): train again"
            )
        _check(finished, (len(groups), BINS))
        _check(censored, (len(groups), BINS + 1))
        return cls({g: Row(f, c) for g, f, c in zip(groups, finished, censored, strict=True)})

    def _make_forecast(self, turn: _Turn) -> Forecast:
        levels = self._levels(*turn)
        curve = survival.longest([survival.log_survival(hazard) for hazard, _, _ in levels])
        return Forecast(
            elapsed_s=tuple(GRID_S.tolist()),
            remaining_s=tuple(survival.expected_remaining(curve).tolist()),
            quantiles=tuple(Quantile(p, survival.quantile(curve, p)) for p in PROBABILITIES),
            source=max((source for _, source, _ in levels), key=list(Source).index),
            sample_count=min(count for _, _, count in levels),
            model_version=self.version,
        )

    def _levels(self, tenant: str, wait: Wait, tools: tuple[str, ...]) -> list[_Level]:
        """One per tool called; the tenant's own where there is none."""
        level: _Level = (prior.WAITS[wait], Source.PRIOR, 0)
        level = self._shrink(Group(None, wait), level, Source.GLOBAL)
        level = self._shrink(Group(tenant, wait), level, Source.TENANT)
        hazard, source, count = level
        return [
            self._shrink(
                Group(tenant, wait, tool),
                (survival.tilt(hazard, prior.tool_hazards(tool), prior.OVERALL), source, count),
                Source.TOOL,
            )
            for tool in tools
        ] or [level]

    def _shrink(self, group: Group, parent: _Level, source: Source) -> _Level:
        row = self.rows.get(group)
        if row is None:
            return parent
        return survival.hazards(row.finished, row.censored, parent[0]), source, row.samples

    def _groups(self, interval: Interval) -> list[Group]:
        """The rows that an interval counts in."""
        tenant, wait = interval.key.tenant, interval.wait
        groups = [Group(None, wait), Group(tenant, wait)]
        if wait is Wait.TOOL and interval.calls:
            groups.append(Group(tenant, wait, self._slowest(tenant, interval.calls)))
        return groups

    def _slowest(self, tenant: str, calls: tuple[ToolCall, ...]) -> str:
        """The tool with the longest median wait, as far as this model knows."""
        names = sorted({call.name for call in calls})
        if len(names) == 1:
            return names[0]
        return max(
            names,
            key=lambda n: self.forecast(tenant, Wait.TOOL, (ToolCall(n),)).quantiles[0].wait_s,
        )


def _count(row: Row, interval: Interval) -> None:
    """Adds the interval to a row that nobody else holds."""
    end = survival.finished_bin(interval.seconds) if interval.is_finished else None
    if end is None:
        row.censored[survival.censored_bin(interval.seconds)] += 1
    else:
        row.finished[end] += 1


def _has_room(group: Group, tenants: set[str | None], tools_of: Counter[str | None]) -> bool:
    """Whether a new group fits; takes the place if so."""
    if group.tenant not in tenants and len(tenants) > MAX_TENANTS:
        return False
    if group.tool is not None:
        if tools_of[group.tenant] >= MAX_TOOLS_PER_TENANT:
            return False
        tools_of[group.tenant] += 1
    tenants.add(group.tenant)
    return True


def _matrix(rows: list[Counts], columns: int) -> Counts:
    return np.array(rows, np.int64).reshape(-1, columns)


def _check(counts: Any, shape: tuple[int, int]) -> None:
    if counts.shape != shape or counts.dtype != np.int64 or (counts < 0).any():
        raise ModelError("its counts are damaged: train again, or restore an older one")


def _as_list(group: Group) -> list[str | None]:
    return [group.tenant, group.wait.value, group.tool]


def _as_json(group: Group) -> str:
    return json.dumps(_as_list(group))
