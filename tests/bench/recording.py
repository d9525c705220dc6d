"""What a real engine did, and the same requests for the replay.

The sessions of the replay have the blocks, the answers' lengths and the gaps between turns that the
engine saw, and the forecasts that it was sent. A step takes what the cost model says, fitted to the
engine's steps, times how slow the machine was at that moment: on CPUs other processes make vLLM up
to five times slower. All else is the replay's own: when a request ends and so when the next comes,
who runs, what is hit and what is evicted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cachewise_bench.cost_model import Hardware
from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.ours import Ours
from cachewise_bench.prompts import Prompt, Prompts
from cachewise_bench.replay import Outcome, Replay
from cachewise_bench.vllm_server import BATCHED_TOKENS, BLOCK_TOKENS
from cachewise_bench.workload import Session, Turn
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate
from scipy.optimize import nnls

WINDOW_S = 0.5
"""The machine's speed is told so often."""


@dataclass(frozen=True)
class Served:
    """A request; times are seconds of the engine's clock."""

    arrived_s: float
    finished_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    blocks: tuple[bytes, ...]
    """Names of its full blocks, the answer's with them."""
    forecasts: tuple[tuple[float, ForecastUpdate], ...] = ()
    """Those for the wait after it, and how long after its end they came. Their times are relative
    to that end."""


@dataclass(frozen=True)
class Step:
    began_s: float
    seconds: float
    work: tuple[tuple[int, int], ...]
    """Of each request its tokens in this step, and its context after the step."""


@dataclass(frozen=True)
class Recording:
    """The requests of each session in their order, and the engine's steps."""

    sessions: dict[str, list[Served]]
    steps: list[Step]

    @property
    def begin_s(self) -> float:
        return min(turns[0].arrived_s for turns in self.sessions.values())


def read(path: Path) -> Recording:
    """What recording_scheduler.py has written."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    requests: dict[str, dict[str, Any]] = defaultdict(dict)
    for event in events:
        if "request" in event:
            requests[event["request"]] |= event | {event["event"]: event["at"]}
    sessions: dict[str, list[Served]] = defaultdict(list)
    for seen in requests.values():
        sessions[seen["session"]].append(_served(seen))
    for name, turns in sessions.items():
        key = hash_session(name, "")
        sent = [e for e in events if e["event"] == "forecast" and e["session"] == key]
        sessions[name] = [
            replace(turn, forecasts=_forecasts(turn, following, sent))
            for turn, following in zip(turns, [*turns[1:], None], strict=True)
        ]
    return Recording(dict(sessions), _steps(events))


def _served(seen: dict[str, Any]) -> Served:
    return Served(
        seen["queued"],
        seen["finished"],
        seen["prompt_tokens"],
        seen["output_tokens"],
        seen["max_tokens"],
        tuple(bytes.fromhex(name) for name in seen["blocks"]),
    )


def _forecasts(
    turn: Served, following: Served | None, sent: Sequence[dict[str, Any]]
) -> tuple[tuple[float, ForecastUpdate], ...]:
    end, until = turn.finished_s, following.finished_s if following else float("inf")
    return tuple(
        (
            event["received_at"] - end,
            ForecastUpdate(
                event["session"],
                event["opened_at"] - end,
                event["curve"] and Forecast(*map(_frozen, event["curve"])),
                event["ended"],
            ),
        )
        for event in sent
        if end <= event["received_at"] < until
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _steps(events: Sequence[dict[str, Any]]) -> list[Step]:
    """From the beginning of each to that of the next, where the next followed at once."""
    steps = [event for event in events if event["event"] == "step"]
    return [
        Step(
            step["began"],
            (following["began"] if step["goes_on"] and following else step["at"]) - step["began"],
            tuple((tokens, context) for tokens, context in step["work"]),
        )
        for step, following in zip(steps, [*steps[1:], None], strict=True)
        if step["work"]
    ]


@dataclass(frozen=True)
class Machine(Hardware):
    """The engine's cost model, and how much slower than that, or faster, it was at each moment:
    other processes come and go."""

    at_s: tuple[float, ...] = ()
    slowness: tuple[float, ...] = ()
    clock: Callable[[], float] = lambda: 0.0
    """Seconds since the first request came, as in at_s."""

    def step_seconds(self, work: Iterable[tuple[int, int]]) -> float:
        return super().step_seconds(work) * float(np.interp(self.clock(), self.at_s, self.slowness))


def fitted(recording: Recording, blocks: int) -> Machine:
    """The cost model that is nearest to the seconds of the steps."""
    steps = recording.steps
    features = np.array([_features(step) for step in steps], dtype=float)
    seconds = np.array([step.seconds for step in steps])
    coefficients, _ = nnls(features, seconds)
    step_s, token_s, decode_s, prefill_s = map(float, coefficients)
    window = np.array([(step.began_s - recording.begin_s) // WINDOW_S for step in steps])
    expected = features @ coefficients
    windows = np.unique(window)
    return Machine(
        name="this machine's CPU",
        kv_bytes_per_token=2,
        pool_blocks=blocks,
        block_size=BLOCK_TOKENS,
        step_tokens=(1.0, float(BATCHED_TOKENS)),
        step_ms=tuple(1e3 * (step_s + token_s * t) + 1e-6 for t in (1, BATCHED_TOKENS)),
        decode_ms_per_context_token=1e3 * decode_s,
        prefill_ms_per_token_and_context_token=1e3 * prefill_s,
        host_ms=0.0,
        at_s=tuple(float(w + 0.5) * WINDOW_S for w in windows),
        slowness=tuple(
            float(seconds[window == w].sum() / expected[window == w].sum()) for w in windows
        ),
    )


def _features(step: Step) -> tuple[float, float, float, float]:
    """What the cost model multiplies."""
    decodes = sum(context for tokens, context in step.work if tokens == 1)
    prefills = sum(tokens * context for tokens, context in step.work if tokens > 1)
    return (1.0, sum(tokens for tokens, _ in step.work), decodes, prefills)


def replayed(recording: Recording, machine: Machine, policy: Policy) -> Outcome:
    """The outcome of the same requests under the policy."""
    sessions = [
        Session(name, tuple(_turn(*pair) for pair in zip(turns, [*turns[1:], None], strict=True)))
        for name, turns in recording.sessions.items()
    ]
    machine = replace(machine, clock=lambda: replay.engine.now)
    replay = _RecordedReplay(sessions, policy, machine, chunk=BATCHED_TOKENS)
    replay.prompts = _RecordedPrompts(sessions, recording)
    firsts = (turns[0].arrived_s for turns in recording.sessions.values())
    replay.starts_s = [first - recording.begin_s for first in firsts]
    return replay.run()


def _turn(served: Served, following: Served | None) -> Turn:
    gap_s = following.arrived_s - served.finished_s if following else 0.0
    return Turn(served.prompt_tokens, served.output_tokens, (), gap_s)


@dataclass
class _RecordedReplay(Replay):
    """Sessions begin when they did."""

    starts_s: list[float] = field(default_factory=list)

    def _start(self, index: int, now: float) -> None:
        super()._start(index, self.starts_s[index])


class _RecordedPrompts(Prompts):
    """Prompts of the blocks that the engine saw."""

    def __init__(self, sessions: Sequence[Session], recording: Recording) -> None:
        super().__init__(sessions)
        self._recording = recording

    def prompt(self, index: int, turn: int) -> Prompt:
        name = self.sessions[index].name
        served = self._recording.sessions[name][turn]
        return _RecordedPrompt(
            name,
            served.prompt_tokens,
            served.output_tokens,
            (),
            name,
            max_tokens=served.max_tokens,
            recorded=served.blocks,
        )


@dataclass(frozen=True)
class _RecordedPrompt(Prompt):
    recorded: tuple[bytes, ...] = ()

    def block_names(self, first: int, end: int, block_size: int) -> list[bytes]:
        assert end <= len(self.recorded)
        return list(self.recorded[first:end])


class RecordedForecasts(Ours):
    """CacheWise with the forecasts that the engine was sent, as long after each turn."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(None)
        self._turns = {name: iter(turns) for name, turns in recording.sessions.items()}
        self._under_way: list[tuple[float, ForecastUpdate]] = []

    def turn_ended(self, session: str, away: Away) -> None:
        super().turn_ended(session, away)
        self._turn_over(session, away.since)

    def session_ended(self, session: str, now: float) -> None:
        """Nobody tells an engine; the predictor expects a person to come."""
        super().session_ended(session, now)
        self._turn_over(session, now)

    def begin_step(self, now: float) -> None:
        super().begin_step(now)
        due = [update for at, update in self._under_way if at <= now]
        self._under_way = [(at, update) for at, update in self._under_way if at > now]
        for update in due:
            self._hook.take_forecast(update)

    def _turn_over(self, session: str, now: float) -> None:
        for delay_s, update in next(self._turns[session]).forecasts:
            taken = replace(update, opened_at=now + update.opened_at, received_at=now + delay_s)
            self._under_way.append((now + delay_s, taken))
