"""Whether CacheWise pays on somebody's traffic, in words, from the figures of a replay.

The traffic was replayed with several numbers of sessions at once, each with stock vLLM and with one
lever after the other. At a number of sessions

    all contexts fit   nothing that stock vLLM evicts is needed again: no lever can help
    the pool thrashes  stock vLLM computes 2 tokens or more for each new one
    CacheWise pays     a session takes stock vLLM 5 % longer, or more, than with all levers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachewise_bench.digits import three_digits

THRASHES = 2.0
PAYS = 1.05
NOTICEABLE = 1.02
"""A smaller ratio is called no difference."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Lever:
    """One thing more that can be switched on."""

    key: str
    words: str
    policy: str
    is_offloaded: bool = False


STOCK = Lever("stock", "stock vLLM", "vllm")
ORDER = Lever("order", "the prefix-aware order alone", "ours-order")
ACTIVE_SET = Lever("active_set", "the active set as well", "ours-no-forecast")
FORECASTS = Lever("forecasts", "forecasts as well", "ours")
LEVERS = (STOCK, ORDER, ACTIVE_SET, FORECASTS)

STOCK_OFFLOADED = Lever("stock_offload", "stock vLLM with host memory", "vllm", True)
ALL_OFFLOADED = Lever("all_offload", "all levers with host memory", "ours", True)
OFFLOAD_LEVERS = (STOCK_OFFLOADED, ALL_OFFLOADED)


@dataclass(frozen=True)
class Traffic:
    """What was replayed, and on what."""

    hardware: str
    pool_tokens: int
    most_context_tokens: tuple[int, ...]
    """The largest context of each session."""
    turns: int

    @property
    def sessions_that_fit(self) -> int:
        """About how many sessions of mean size fill the pool when they are at their largest."""
        mean = sum(self.most_context_tokens) / len(self.most_context_tokens)
        return int(self.pool_tokens / mean)


@dataclass(frozen=True)
class Advice:
    """figures: the replay's row for each number of sessions and lever, by the lever's key."""

    traffic: Traffic
    figures: Mapping[int, Mapping[str, Row]]

    @property
    def counts(self) -> list[int]:
        return sorted(self.figures)

    @property
    def fits_up_to(self) -> int | None:
        """The most sessions at once whose contexts all fit."""
        fitting = [n for n in self.counts if self._stock(n)["refilled_blocks"] == 0]
        return max(fitting, default=None)

    @property
    def thrashes_from(self) -> int | None:
        """The fewest sessions at once that make the pool thrash."""
        found = (n for n in self.counts if self._stock(n)["recompute_ratio"] >= THRASHES)
        return next(found, None)

    @property
    def pays_at(self) -> list[int]:
        return [n for n in self.counts if self.speedup(n, FORECASTS) >= PAYS]

    def speedup(self, sessions: int, lever: Lever) -> float:
        """How many times longer a session takes stock vLLM."""
        row = self.figures[sessions][lever.key]
        return float(self._stock(sessions)["session_time_mean_s"] / row["session_time_mean_s"])

    def sentences(self) -> list[str]:
        """The verdict, then what it is founded on."""
        said = [self._verdict(), self._replayed(), self._pressure()]
        for n in self.counts:
            if self._stock(n)["refilled_blocks"]:
                said += [self._levers(n), *self._host_memory(n)]
        return [*said, *self._predictor(), *self._price()]

    def as_json(self) -> dict[str, Any]:
        return {
            "hardware": self.traffic.hardware,
            "pool_tokens": self.traffic.pool_tokens,
            "sessions_that_fit": self.traffic.sessions_that_fit,
            "fits_up_to": self.fits_up_to,
            "thrashes_from": self.thrashes_from,
            "pays_at": self.pays_at,
            "sentences": self.sentences(),
            "figures": {n: dict(levers) for n, levers in self.figures.items()},
        }

    # ---- sentences -------------------------------------------------------------------------------

    def _verdict(self) -> str:
        counts, pays = self.counts, self.pays_at
        if self.fits_up_to == counts[-1]:
            return (
                f"Leave it off: the contexts of {counts[-1]} sessions at once all fit into the "
                "pool, so there is nothing to gain."
            )
        if not pays:
            best = max(self.speedup(n, FORECASTS) for n in counts)
            return (
                f"Leave it off: with up to {counts[-1]} sessions at once it makes a session "
                f"{_faster(best)}."
            )
        off = [n for n in counts if n not in pays]
        if not off:
            return f"Turn it on: it pays from {counts[0]} sessions at once on, the fewest tried."
        if max(off) < min(pays):
            return (
                f"Turn it on from {min(pays)} sessions at once; leave it off where at most "
                f"{max(off)} run at once, where it makes a session "
                f"{_faster(self.speedup(max(off), FORECASTS))}."
            )
        return f"It pays at {_list(pays)} sessions at once, and not at {_list(off)}: try it."

    def _replayed(self) -> str:
        traffic = self.traffic
        mean = sum(traffic.most_context_tokens) / len(traffic.most_context_tokens)
        return (
            f"{len(traffic.most_context_tokens)} sessions with {traffic.turns:,} turns were "
            f"replayed on {traffic.hardware}. Its pool holds {traffic.pool_tokens:,} tokens, about "
            f"{traffic.sessions_that_fit} of these sessions at their largest ({mean:,.0f} tokens)."
        )

    def _pressure(self) -> str:
        fits, thrashes = self.fits_up_to, self.thrashes_from
        said = f"Up to {fits} sessions at once all contexts fit. " if fits is not None else ""
        if thrashes is not None:
            row = self._stock(thrashes)
            return said + (
                f"From {thrashes} sessions at once on the pool thrashes: stock vLLM computes "
                f"{row['recompute_ratio']:.1f} tokens for each new one and evicts "
                f"{row['evicted_blocks']:,} blocks."
            )
        most = self.counts[-1]
        ratio = self._stock(most)["recompute_ratio"]
        return said + (
            f"The pool does not thrash with up to {most} sessions at once: stock vLLM computes "
            f"{ratio:.2f} tokens for each new one there."
        )

    def _levers(self, n: int) -> str:
        parts = ", ".join(f"{lever.words} {self._gain(n, lever)}" for lever in LEVERS[1:])
        stock = three_digits(self._stock(n)["session_time_mean_s"])
        return f"With {n} sessions at once a session takes stock vLLM {stock} s; {parts}."

    def _host_memory(self, n: int) -> Iterator[str]:
        if STOCK_OFFLOADED.key in self.figures[n]:
            parts = ", ".join(f"{lever.words} {self._gain(n, lever)}" for lever in OFFLOAD_LEVERS)
            yield f"With {n} sessions at once and host memory for evicted blocks: {parts}."

    def _gain(self, n: int, lever: Lever) -> str:
        seconds = three_digits(self.figures[n][lever.key]["session_time_mean_s"])
        return f"{seconds} s ({self.speedup(n, lever):.2f}×)"

    def _predictor(self) -> Iterator[str]:
        """Whether to run the predictor, by the largest number of sessions at which it can help."""
        if self.pays_at:
            n = self.pays_at[-1]
            gain = self.speedup(n, FORECASTS) / self.speedup(n, ACTIVE_SET)
            does = "Run the predictor" if gain >= NOTICEABLE else "You can do without the predictor"
            made = _faster(gain)
            yield f"{does}: with {n} sessions at once its forecasts make a session {made}."

    def _price(self) -> Iterator[str]:
        for n in self.pays_at:
            stock, ours = self._stock(n), self.figures[n][FORECASTS.key]
            worse = [
                f"{name} {three_digits(stock[key])} → {three_digits(ours[key])} s"
                for key, name in (
                    ("request_p99_s", "the P99 of a request"),
                    ("max_wait_s", "the longest wait"),
                )
                if ours[key] > NOTICEABLE * stock[key]
            ]
            if worse:
                yield f"The price with {n} sessions at once: {', '.join(worse)}."

    def _stock(self, n: int) -> Row:
        return self.figures[n][STOCK.key]


def advise(traffic: Traffic, rows: Sequence[tuple[int, Lever, Row]]) -> Advice:
    """From the rows of a replay, each with its number of sessions and lever."""
    figures: dict[int, dict[str, Row]] = {}
    for sessions, lever, row in rows:
        figures.setdefault(sessions, {})[lever.key] = row
    return Advice(traffic, figures)


def _faster(ratio: float) -> str:
    """A speed-up as words."""
    if 1 / NOTICEABLE < ratio < NOTICEABLE:
        return "no faster and no slower"
    return f"{ratio:.2f} times faster" if ratio > 1 else f"{1 / ratio:.2f} times slower"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
