"""What the step path counts: plain numbers, no lock. metrics.py exports them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from prometheus_client.core import HistogramMetricFamily

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Histogram:
    """Counts in buckets of seconds, without the lock of prometheus_client's own."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        bounds, total, buckets = (*map(str, _SECONDS), "+Inf"), 0, []
        for bound, count in zip(bounds, list(self.counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self.sum)


class Counts:
    """What the scheduler counts; written by its thread only."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.hit_tokens = self.recomputed_tokens = 0
        self.queue_s, self.forecast_delay_s = Histogram(), Histogram()
        self.forecasts_dropped: Counter[str] = Counter()
        self.observed: Counter[str] = Counter()
        """In mode observe: what would have gone otherwise."""
