"""The interval stream becomes models: what the trainer does while it has the lease.

    take      new intervals go into the window; those that came before count once (window.py)
    watch     do the waits of a tool still follow the serving model? (drift.py)
    train     when it is due (training.py), in a thread, so that the lease is kept meanwhile
    judge     against the serving model, on intervals that neither has learned from (gate.py)
    publish   in one transaction, only if the current model is still the one it was judged against

What the window holds can be read again from the stream, so that another trainer takes over where
this one ended. A stored model that is broken is replaced by the last good one.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from .drift import DriftWatch
from .errors import ModelError
from .events import START, Position
from .gate import NEWEST, Verdict
from .model import Group, Model
from .model_file import from_bytes, to_bytes
from .published import ModelInfo, Pointer
from .quality import pit
from .store import Store, Taken
from .training import Schedule, TrainerStatus
from .trial import Outcome, Trial
from .window import MAX_INTERVALS, Changes, Entry, StoredInterval, Window, is_outdated

_LONGEST_TAKE_S = 2.0

LEAST_AFTER, LEAST_RESERVED = NEWEST, 8
"""Intervals that a change needs behind it before it is acted on, of those that the serving model
has not learned; and reserved ones of them.
"""

_MOST_TRIALS = 2
"""A change that no model gains from is forgotten after so many."""

_log = logging.getLogger(__name__)


class Learner:
    """All methods raise StoreError, and can be called again after it."""

    def __init__(self, store: Store, clock: Callable[[], float], schedule: Schedule) -> None:
        """clock: seconds since the epoch."""
        self._store, self._clock, self._schedule = store, clock, schedule
        self._window, self._watch = Window(), DriftWatch()
        self._status = TrainerStatus()
        self._model, self._info = Model(), ModelInfo("", 0.0)
        self._pointer: Pointer | None = None
        self._is_again = True
        self._position = START
        self._new = 0
        self._changes: dict[Group, Position] = {}
        self._trials = Counter[Group]()
        self._trial: Trial | None = None
        self._ended_at, self._took_s = monotonic(), 0.0

    async def start(self) -> None:
        """Reads what the trainers before have read."""
        self._status = await self._store.status() or TrainerStatus()
        unread = await self._store.unread_from()
        for stored in await self._store.newest_intervals(unread, MAX_INTERVALS):
            self._position = stored.position
            self._window.add(stored)
        self._window.expire(self._clock())
        self._window.leave_out(await self._store.left_out())
        await self._follow()
        _log.info("training: %d intervals in the window", len(self._window))

    async def round(self) -> bool:
        """One of each step; whether there is more to take at once."""
        await self._follow()
        has_more = await self._take()
        if self._trial is None:
            self._begin_if_due()
        elif self._trial.is_over:
            trial, self._trial = self._trial, None
            await self._end(trial)
        await self._tell()
        return has_more

    async def _follow(self) -> None:
        """Goes by the current model, whoever published it."""
        pointer = await self._store.pointer()
        if pointer is None or pointer == self._pointer:
            self._pointer = pointer
            return
        try:
            model = from_bytes(await self._store.load_model(pointer.version))
        except ModelError as error:
            _log.error("stored model %s refused: %s", pointer.version, error)
            self._pointer = pointer
            await self._repair(pointer)
            return
        info = await self._store.model_info(pointer.version)
        self._serve(pointer, model, info or ModelInfo("unknown", 0.0, pointer.position))
        self._window.leave_out(await self._store.left_out())

    async def _repair(self, broken: Pointer) -> None:
        """Publishes the last good model again."""
        model, info = await self._last_good(broken.version)
        if not model.rows:
            return
        pointer = Pointer(model.version, broken.generation + 1, info.position)
        if await self._store.publish_model(pointer, to_bytes(model), info, broken.generation):
            _log.warning("model %s is the current one again", pointer.version)
            self._serve(pointer, model, info)

    async def _last_good(self, broken: str) -> tuple[Model, ModelInfo]:
        """Ours; if there is none, the newest that is stored."""
        if not self._model.rows:
            for version in await self._store.versions():
                info = await self._store.model_info(version)
                with contextlib.suppress(ModelError):
                    if version != broken and info is not None:
                        return from_bytes(await self._store.load_model(version)), info
        return self._model, self._info

    async def _take(self) -> bool:
        deadline = monotonic() + _LONGEST_TAKE_S
        while monotonic() < deadline:
            taken: Taken = await self._store.take_intervals(self._is_again)
            if taken.ids:
                for stored in taken.intervals:
                    self._add(stored)
                await self._store.acknowledge(taken)
            elif self._is_again:
                self._is_again = False
            else:
                self._window.expire(self._clock())
                return False
        return True

    def _add(self, stored: StoredInterval) -> None:
        self._position = stored.position
        entry = self._window.add(stored)
        if entry is None:
            self._count("duplicates")
            return
        if not stored.is_live:
            return
        self._new += not entry.is_reserved
        self._watch_one(entry)

    def _watch_one(self, entry: Entry) -> None:
        """Was the serving model right about this interval, which it has not learned?"""
        if not self._watch.is_following(entry.group):
            return
        interval = entry.interval
        curve = self._model.curve(interval.key.tenant, interval.wait, interval.calls)
        value = pit(curve, interval.seconds, interval.is_finished).middle
        since = self._watch.add(entry.group, entry.position, value)
        if since is not None:
            self._count("drifts")
            self._changes[entry.group] = since
            self._trials.pop(entry.group, None)
            _log.warning("the waits of %s have changed", _name(entry.group))

    def _begin_if_due(self) -> None:
        changes = self._ripe_changes()
        reason = self._schedule.due(
            new=self._new,
            known=len(self._window) - self._new,
            has_changes=any(group not in self._trials for group in changes),
            since_s=monotonic() - self._ended_at,
            took_s=self._took_s,
        )
        if reason is None:
            return
        self._trial = Trial(
            reason if self._model.rows else "first",
            self._pointer.generation if self._pointer else None,
            self._position,
            changes,
        )
        self._trial.begin(
            self._window.learnable(changes), list(self._window), self._model, self._info.position
        )
        self._new = 0

    def _ripe_changes(self) -> Changes:
        """Those with enough behind them to judge a model by."""
        if not self._changes:
            return {}
        after, reserved = Counter[Group](), Counter[Group]()
        for entry in self._window:
            if entry.group in self._changes and not is_outdated(entry, self._changes):
                is_new = entry.position > self._info.position
                after[entry.group] += is_new or entry.is_reserved
                reserved[entry.group] += entry.is_reserved
        return {
            group: since
            for group, since in self._changes.items()
            if after[group] >= LEAST_AFTER and reserved[group] >= LEAST_RESERVED
        }

    async def _end(self, trial: Trial) -> None:
        self._ended_at = monotonic()
        self._count("trainings")
        try:
            outcome = trial.outcome()
        except Exception:
            _log.exception("the training failed")
            self._count("failures")
            return
        self._took_s, verdict = outcome.took_s, outcome.verdict
        self._show(outcome)
        if not verdict.refusal:
            await self._promote(trial, outcome)
            return
        _log.warning("model %s refused: %s", outcome.candidate.version, verdict.refusal)
        self._count("refusals")
        await self._refuse(trial, verdict)

    async def _promote(self, trial: Trial, outcome: Outcome) -> None:
        candidate, verdict = outcome.candidate, outcome.verdict
        pointer = Pointer(candidate.version, (trial.generation or 0) + 1, trial.position)
        changes = self._window.remembered({**self._info.changes, **trial.changes}, self._clock())
        info = ModelInfo(
            trial.reason,
            self._clock(),
            trial.position,
            changes,
            verdict.score,
            verdict.serving_score,
        )
        if not await self._store.publish_model(pointer, outcome.blob, info, trial.generation):
            _log.warning("another model was published meanwhile: %s is dropped", pointer.version)
            return
        self._count("promotions")
        _log.info("model %s promoted (%s)", pointer.version, trial.reason)
        self._serve(pointer, candidate, info)

    async def _refuse(self, trial: Trial, verdict: Verdict) -> None:
        for group in trial.changes:
            self._trials[group] += 1
        given_up = {g for g in trial.changes if self._trials[g] >= _MOST_TRIALS}
        if verdict.spoiled:
            self._count("spoiled", len(verdict.spoiled))
            await self._store.leave_out(verdict.spoiled)
            self._window.leave_out(verdict.spoiled)
            tenants = {part.tenant for part in verdict.spoiled}
            given_up |= {group for group in self._changes if group.tenant in tenants}
        self._forget_changes(given_up)

    def _serve(self, pointer: Pointer, model: Model, info: ModelInfo) -> None:
        """From now on this is the model to beat. Tools that were not watched, or have changed, have
        what is reserved of them to begin with.
        """
        self._pointer, self._model, self._info = pointer, model, info
        self._window.cut(info.changes)
        self._forget_changes({group for group in self._changes if group in info.changes})
        fresh = self._watch.follow(model.groups_by_samples)
        for entry in self._window.reserve:
            if entry.group in fresh:
                self._watch_one(entry)

    def _forget_changes(self, groups: set[Group]) -> None:
        self._watch.restart(groups)
        for group in groups:
            self._changes.pop(group, None)
            self._trials.pop(group, None)

    def _show(self, outcome: Outcome) -> None:
        verdict = outcome.verdict
        self._status = replace(
            self._status,
            training_seconds=outcome.took_s,
            trained_at=self._clock(),
            score=verdict.score or 0.0,
            serving_score=verdict.serving_score or 0.0,
        )

    def _count(self, name: str, by: int = 1) -> None:
        self._status = replace(self._status, **{name: getattr(self._status, name) + by})

    async def _tell(self) -> None:
        self._status = replace(
            self._status,
            window=len(self._window),
            reserved=len(self._window.reserve),
            lag=await self._store.lag(),
        )
        await self._store.write_status(self._status)


def _name(group: Group) -> str:
    """For the log; names come from engines."""
    return repr(group.kind or group.wait.value)
