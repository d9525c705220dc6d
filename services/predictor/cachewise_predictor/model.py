"""The model: counts of intervals per group, and the curves that follow from them.

A model never changes. `learn` gives a new one with more intervals in it; `forecast` computes a
curve when it is first asked for and remembers it. The levels of a tool call, each shrunk towards
the one before (survival.hazards):

    the prior (prior.py)
    all tenants, all of a tenant
    kind of call (calls.py)        tilted by what is published on it
    cluster of its arguments       clusters.py; none if they resemble none
    limit, program, action, command
    the session's own last waits   evidence.py; not in the model

Waits for a person, and those after a cut or aborted turn, have curves of their own and none below
the tenant's. Of a turn's calls the one that says most of each kind counts; the turn is forecast as
the maximum of their curves; when it is over, its wait counts for the slowest of them.

Counts are additive, so the order of intervals does not matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np

from . import evidence, prior, survival
from .calls import fingerprint, main_call, main_kind, read_call
from .clusters import MIN_SAMPLES, Clusters
from .events import Forecast, Interval, Quantile, Source, ToolCall, Wait
from .evidence import Recent
from .survival import BINS, GRID_S, KAPPA, TOLD, Counts, Floats

PROBABILITIES = (0.5, 0.9, 0.99)
MAX_TENANTS = 200
MAX_KINDS_PER_TENANT = 200
MAX_PARTS = 40_000
"""A tenant, kind of call or part of one beyond these counts for the level above only."""

MAX_CLUSTERED_KINDS = 20

_MAX_REMEMBERED = 16_384
_KAPPAS = {
    name: survival.cautious(kappa)
    for name, kappa in (
        ("cluster", 15.0),
        ("limit", 8.0),
        ("program", 4.0),
        ("action", 4.0),
        ("command", 2.0),
    )
}
"""Weight of the level before. Chosen on held-out sessions of the public traces."""

_UPPER_KAPPA = survival.cautious(KAPPA)


class Group(NamedTuple):
    """Whose intervals a row of counts holds.

    tenant None: all tenants; kind None: all kinds, or a wait without a tool; part None: all calls
    of the kind, else "LEVEL NAME".
    """

    tenant: str | None
    wait: Wait
    kind: str | None = None
    part: str | None = None


def group_of(interval: Interval) -> Group:
    """The tool that an interval belongs to: its tenant's kind of call, or its kind of wait."""
    is_tool = interval.wait is Wait.TOOL and interval.calls
    kind = main_kind(interval.calls) if is_tool else None
    return Group(interval.key.tenant, interval.wait, kind)


class Row(NamedTuple):
    """Intervals of a group: BINS counts by bin of the end, BINS + 1 of censored ones by bins
    survived.
    """

    finished: Counts
    censored: Counts

    @property
    def samples(self) -> int:
        return int(self.finished.sum() + self.censored.sum())


class Level(NamedTuple):
    """A curve on the way to a forecast; samples: the intervals of this level alone."""

    name: str
    hazard: Floats
    source: Source
    samples: int


class _Chain(NamedTuple):
    """levels: from the prior on; curve: log survival of the last; samples: of its source."""

    levels: tuple[Level, ...]
    curve: Floats
    samples: int

    @classmethod
    def of(cls, levels: Sequence[Level]) -> _Chain:
        last = levels[-1]
        samples = max(level.samples for level in levels if level.source is last.source)
        return cls(tuple(levels), survival.log_survival(last.hazard), samples)


_ELAPSED_S = tuple(GRID_S[TOLD].tolist())
_EMPTY = Row(np.zeros(BINS, np.int64), np.zeros(BINS + 1, np.int64))
_Turn = tuple[str, Wait, tuple[ToolCall, ...], Recent]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class Model:
    """digest: tells models of different content apart; crowded_out: groups that were over a bound
    when they were learned, by level.
    """

    rows: Mapping[Group, Row] = field(default_factory=dict)
    clusters: Mapping[tuple[str, str], Clusters] = field(default_factory=dict)
    digest: int = 0
    crowded_out: Mapping[str, int] = field(default_factory=dict)
    _forecasts: dict[_Turn, Forecast] = field(default_factory=dict, repr=False)
    _levels: dict[tuple[Group, ...], tuple[Level, ...]] = field(default_factory=dict, repr=False)
    _chains: dict[tuple[Group, ...], _Chain] = field(default_factory=dict, repr=False)
    _groups_of_call: dict[tuple[str, ToolCall], tuple[Group, ...]] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def fit(cls, intervals: Iterable[Interval]) -> Model:
        """Clusters of the arguments in these intervals, and nothing learned yet. Takes seconds."""
        texts: dict[tuple[str, str], list[str]] = defaultdict(list)
        for interval in intervals:
            for call in interval.calls:
                texts[interval.key.tenant, read_call(call).kind].append(call.arguments)
        largest = sorted(texts, key=lambda key: -len(texts[key]))[:MAX_CLUSTERED_KINDS]
        fitted = {
            key: clusters
            for key in largest
            if len(texts[key]) >= 2 * MIN_SAMPLES
            and (clusters := Clusters.fit(texts[key])) is not None
        }
        return cls(clusters=fitted, digest=_digest(c.centroids.tobytes() for c in fitted.values()))

    def forecast(
        self, tenant: str, wait: Wait, calls: tuple[ToolCall, ...], recent: Recent = ()
    ) -> Forecast:
        """The curve of a wait that begins now.

        calls: those of the turn, for a TOOL wait; recent: what the session has waited before.
        """
        is_call = wait is Wait.TOOL and bool(calls)
        turn = (tenant, wait, calls, evidence.relevant(recent, calls) if is_call else ())
        known = self._forecasts.get(turn)
        if known is None:
            known = _remember(self._forecasts, turn, self._make_forecast(turn))
        return known

    def curve(
        self, tenant: str, wait: Wait, calls: tuple[ToolCall, ...], recent: Recent = ()
    ) -> Floats:
        """log survival of the same wait."""
        chains = self._chains_of(tenant, wait, calls)
        return self._curve(chains, calls, evidence.relevant(recent, calls) if calls else ())

    def levels(self, tenant: str, wait: Wait, call: ToolCall | None) -> Sequence[Level]:
        """From the prior to the most special one that has data."""
        return self._chain(tenant, wait, call).levels

    def learn(self, intervals: Iterable[Interval]) -> Model:
        """A model with these intervals added; this one stays as it is."""
        counted = [(interval, self._groups(interval)) for interval in intervals]
        new = Counter(g for _, groups in counted for g in groups if g not in self.rows)
        rows, crowded_out = dict(self.rows), Counter(self.crowded_out)
        crowded_out.update(_make_room(rows, new))
        changed, digest = dict[Group, Row](), self.digest
        for interval, groups in counted:
            digest = (digest + _digest([repr(interval).encode("utf-8", "replace")])) % 2**64
            for group in groups:
                if (old := rows.get(group)) is None:
                    continue
                if group not in changed:
                    rows[group] = changed[group] = Row(old.finished.copy(), old.censored.copy())
                _count(changed[group], interval)
        return Model(rows, self.clusters, digest, crowded_out)

    @cached_property
    def samples(self) -> int:
        """Intervals in the model."""
        return sum(self.row(Group(None, wait)).samples for wait in Wait)

    @cached_property
    def version(self) -> str:
        """Names the content: number of samples and a digest; "prior" without data."""
        return f"{self.samples}-{self.digest:016x}" if self.rows else "prior"

    @cached_property
    def groups_by_level(self) -> Mapping[str, int]:
        """How many there are."""
        return Counter(map(_level, self.rows))

    @cached_property
    def groups_by_samples(self) -> list[Group]:
        """Tools, as in group_of, of each tenant; those with most intervals first."""
        kinds = [g for g in self.rows if g.kind is not None and g.part is None]
        others = [g for g in self.rows if g.kind is None and g.tenant and g.wait is not Wait.TOOL]
        return sorted(kinds + others, key=lambda group: -self.rows[group].samples)

    @cached_property
    def kinds_by_samples(self) -> list[tuple[str, int]]:
        """Kinds of calls and their intervals, of all tenants together, most first."""
        counts = Counter[str]()
        for group, row in self.rows.items():
            if group.kind is not None and group.part is None:
                counts[group.kind] += row.samples
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    def row(self, group: Group) -> Row:
        return self.rows.get(group, _EMPTY)

    def _make_forecast(self, turn: _Turn) -> Forecast:
        tenant, wait, calls, recent = turn
        chains = self._chains_of(tenant, wait, calls)
        curve = self._curve(chains, calls, recent)
        source = max((chain.levels[-1].source for chain in chains), key=list(Source).index)
        return Forecast(
            elapsed_s=_ELAPSED_S,
            remaining_s=tuple(survival.remaining(curve)[TOLD].tolist()),
            quantiles=tuple(Quantile(p, survival.quantile(curve, p)) for p in PROBABILITIES),
            source=Source.CLUSTER if recent else source,
            sample_count=min(chain.samples for chain in chains),
            model_version=self.version,
            log_survival=curve.astype(np.float32),
        )

    def _chains_of(self, tenant: str, wait: Wait, calls: tuple[ToolCall, ...]) -> list[_Chain]:
        """A chain for each call that counts; one without a call if there is none."""
        telling = self._telling(calls) if wait is Wait.TOOL else ()
        return [self._chain(tenant, wait, call) for call in telling or (None,)]

    def _chain(self, tenant: str, wait: Wait, call: ToolCall | None) -> _Chain:
        """The levels of a call; the same for all calls that have the same groups with data."""
        if call is None or wait is not Wait.TOOL:
            groups: tuple[Group, ...] = (Group(tenant, wait),)
        else:
            kind, *parts = self._groups_of(tenant, call)
            groups = (kind, *(part for part in parts if part in self.rows))
        known = self._chains.get(groups)
        if known is None:
            known = _remember(self._chains, groups, _Chain.of(self._levels_to(groups)))
        return known

    def _levels_to(self, groups: tuple[Group, ...]) -> tuple[Level, ...]:
        """From the prior to the last of a kind of call and its parts. Many calls share all but the
        last.
        """
        known = self._levels.get(groups)
        if known is None:
            *before, last = groups
            if before:
                levels = list(self._levels_to(tuple(before)))
                self._shrink(levels, str(last.part), last, Source.CLUSTER)
            else:
                levels = self._upper_levels(last)
            known = _remember(self._levels, groups, tuple(levels))
        return known

    def _curve(self, chains: list[_Chain], calls: tuple[ToolCall, ...], recent: Recent) -> Floats:
        """recent: the session's waits that say something about these calls."""
        curve = survival.longest([chain.curve for chain in chains])
        if not recent:
            return curve
        hazard = chains[0].levels[-1].hazard if len(chains) == 1 else -np.expm1(np.diff(curve))
        return survival.log_survival(evidence.sharpen(hazard, recent, calls))

    def _upper_levels(self, group: Group) -> list[Level]:
        """Those that do not depend on the arguments, for a tenant's wait or kind of call."""
        levels = [Level("prior", prior.WAITS[group.wait], Source.PRIOR, 0)]
        self._shrink(levels, "all tenants", Group(None, group.wait), Source.GLOBAL)
        self._shrink(levels, "tenant", Group(group.tenant, group.wait), Source.TENANT)
        if group.kind is not None:
            published = prior.tool_hazards(group.kind)
            tilted = survival.tilt(levels[-1].hazard, published, prior.OVERALL)
            levels[-1] = levels[-1]._replace(hazard=tilted)
            self._shrink(levels, f"kind {group.kind}", group, Source.TOOL)
        return levels

    def _shrink(self, chain: list[Level], name: str, group: Group, source: Source) -> None:
        """Adds a level if there are data for it."""
        row = self.rows.get(group)
        if row is not None:
            kappa = _KAPPAS[name.split()[0]] if source is Source.CLUSTER else _UPPER_KAPPA
            reached = survival.at_risk(row.finished, row.censored)
            hazard = survival.shrunk(row.finished, reached, chain[-1].hazard, kappa)
            samples = int(reached[0] + row.censored[0])
            chain.append(Level(name, hazard, source, samples))

    def _groups(self, interval: Interval) -> list[Group]:
        """The rows that an interval counts in."""
        tenant, wait = interval.key.tenant, interval.wait
        groups = [Group(None, wait), Group(tenant, wait)]
        if wait is Wait.TOOL and interval.calls:
            groups += self._groups_of(tenant, self._slowest(tenant, interval.calls))
        return groups

    def _groups_of(self, tenant: str, call: ToolCall) -> tuple[Group, ...]:
        """The call's kind, and its parts from the general to the special."""
        known = self._groups_of_call.get((tenant, call))
        if known is None:
            known = _remember(self._groups_of_call, (tenant, call), self._make_groups(tenant, call))
        return known

    def _make_groups(self, tenant: str, call: ToolCall) -> tuple[Group, ...]:
        parts = read_call(call)
        clusters = self.clusters.get((tenant, parts.kind))
        cluster = clusters.assign(call.arguments) if clusters else None
        names = (
            ("cluster", "" if cluster is None else str(cluster)),
            ("limit", parts.limit),
            ("program", parts.program),
            ("action", fingerprint(parts.action) if parts.action else ""),
            ("command", parts.command if call.arguments else ""),
        )
        special = [f"{level} {name}" for level, name in names if name]
        return tuple(Group(tenant, Wait.TOOL, parts.kind, part) for part in (None, *special))

    def _telling(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """One call of each kind, in an order that does not depend on the turn's."""
        if len(calls) <= 1:
            return calls
        kinds: dict[str, list[ToolCall]] = defaultdict(list)
        for call in sorted(calls):
            kinds[read_call(call).kind].append(call)
        return tuple(main_call(same) for same in kinds.values())

    def _slowest(self, tenant: str, calls: tuple[ToolCall, ...]) -> ToolCall:
        """Of the kind with the longest median wait, as far as this model knows."""
        telling = self._telling(calls)
        if len(telling) == 1:
            return telling[0]
        return max(telling, key=lambda call: self._median_of_kind(tenant, call))

    def _median_of_kind(self, tenant: str, call: ToolCall) -> float:
        kind = ToolCall(read_call(call).kind)
        return self.forecast(tenant, Wait.TOOL, (kind,)).quantiles[0].wait_s


def _make_room(rows: dict[Group, Row], new: Mapping[Group, int]) -> Counter[str]:
    """Adds empty rows for new groups, those with most intervals first, as far as the bounds allow;
    gives the number of the others by level. new: intervals of each.
    """
    room, left = _Room(rows), Counter[str]()
    for group in sorted(new, key=lambda g: (-new[g], *_place(g))):
        if _has_parent(group, rows) and room.take(group):
            rows[group] = _EMPTY
        else:
            left[_level(group)] += 1
    return left


def _place(group: Group) -> tuple[bool, bool, str, str, str, str]:
    """An order in which a level comes after those above it."""
    names = (group.tenant or "", group.wait.value, group.kind or "", group.part or "")
    return (group.part is not None, group.kind is not None, *names)


def _level(group: Group) -> str:
    if group.part is not None:
        return "parts"
    return "kinds" if group.kind is not None else "tenants"


def _has_parent(group: Group, rows: Mapping[Group, Row]) -> bool:
    """Whether the level above counts: the kind of a part, the tenant of a kind."""
    if group.part is not None:
        return group._replace(part=None) in rows
    return group.kind is None or group._replace(kind=None) in rows


class _Room:
    """Counts groups against the bounds."""

    def __init__(self, rows: Iterable[Group]) -> None:
        self._tenants = set[str | None]()
        self._kinds = Counter[str | None]()
        self._parts = 0
        for group in rows:
            self.take(group)

    def take(self, group: Group) -> bool:
        """Whether a new group fits; takes the place if so."""
        if group.tenant not in self._tenants and len(self._tenants) > MAX_TENANTS:
            return False
        if group.part is not None:
            self._parts += self._parts < MAX_PARTS
            return self._parts < MAX_PARTS
        if group.kind is not None:
            if self._kinds[group.tenant] >= MAX_KINDS_PER_TENANT:
                return False
            self._kinds[group.tenant] += 1
        self._tenants.add(group.tenant)
        return True


def _count(row: Row, interval: Interval) -> None:
    """Adds the interval to a row that nobody else holds."""
    end = survival.finished_bin(interval.seconds) if interval.is_finished else None
    if end is None:
        row.censored[survival.censored_bin(interval.seconds)] += 1
    else:
        row.finished[end] += 1


def _digest(pieces: Iterable[bytes]) -> int:
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(piece)
    return int.from_bytes(digest.digest())


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    """Adds to what was computed before, from the start when that is too much."""
    if len(known) >= _MAX_REMEMBERED:
        known.clear()
    known[key] = value
    return value
