"""When a model is trained, and what the trainer tells about itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PERIOD_S = 600.0
LEAST_NEW, NEW_SHARE = 10, 0.1
LEAST_PAUSE_S, MOST_BUSY = 5.0, 0.1


@dataclass(frozen=True)
class Schedule:
    """A training is due

    drift    at once when a tool's waits have changed;
    volume   when there are as many new intervals as a share of the window, but a few at least;
    period   when there is anything new and the last training is long ago.

    But for drift, a pause after each training keeps the trainer from being busy more than a part of
    the time.
    """

    period_s: float = PERIOD_S
    least_new: int = LEAST_NEW
    least_pause_s: float = LEAST_PAUSE_S
    most_busy: float = MOST_BUSY

    def due(
        self, new: int, known: int, has_changes: bool, since_s: float, took_s: float
    ) -> str | None:
        """The reason, if a training is due. new, known: learnable intervals since the last training
        and before it; since_s: seconds since its end; took_s: what it took of a processor core.
        """
        if new == 0:
            return None
        if has_changes:
            return "drift"
        if since_s < max(self.least_pause_s, took_s / self.most_busy):
            return None
        if new >= max(self.least_new, NEW_SHARE * known):
            return "volume"
        return "period" if since_s >= self.period_s else None


@dataclass(frozen=True)
class TrainerStatus:
    """Counters, since the store is there: trainings .. duplicates; then how things are now.

    spoiled: parts of the stream that were left out; lag: intervals that wait to be read; scores: of
    the last gate.
    """

    trainings: int = 0
    promotions: int = 0
    refusals: int = 0
    failures: int = 0
    spoiled: int = 0
    drifts: int = 0
    duplicates: int = 0
    window: int = 0
    reserved: int = 0
    lag: int = 0
    training_seconds: float = 0.0
    trained_at: float = 0.0
    score: float = 0.0
    serving_score: float = 0.0
