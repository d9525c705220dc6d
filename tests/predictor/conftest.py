"""Factories for the predictor's tests, and a real Valkey."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.events import (
    Event,
    Interval,
    SessionEnded,
    SessionKey,
    ToolCall,
    TurnEnded,
    TurnStarted,
    Wait,
)
from cachewise_predictor.journal import Journal
from cachewise_predictor.metrics import Metrics
from cachewise_predictor.service import Predictor
from cachewise_predictor.sessions import Sessions
from cachewise_predictor.store import Store
from cachewise_predictor.watchers import Watchers
from prometheus_client import CollectorRegistry

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
KEY = SessionKey("acme", "s1")
_turns = itertools.count()


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def calls(*tools: str) -> tuple[ToolCall, ...]:
    """Calls without arguments."""
    return tuple(map(ToolCall, tools))


def started(turn: str, age_s: float = 0.0, key: SessionKey = KEY) -> Event:
    return Event(key, turn, age_s, TurnStarted())


def ended(
    turn: str,
    age_s: float = 0.0,
    key: SessionKey = KEY,
    tools: tuple[str, ...] = ("Bash",),
    wait: Wait = Wait.TOOL,
) -> Event:
    return Event(key, turn, age_s, TurnEnded(wait, calls(*tools)))


def session_ended(age_s: float = 0.0, key: SessionKey = KEY) -> Event:
    return Event(key, "", age_s, SessionEnded())


def interval(
    seconds: float,
    *tools: str | ToolCall,
    tenant: str = "acme",
    wait: Wait = Wait.TOOL,
    is_finished: bool = True,
) -> Interval:
    made = tuple(ToolCall(tool) if isinstance(tool, str) else tool for tool in tools)
    key = SessionKey(tenant, "s1")
    return Interval(key, f"t{next(_turns)}", wait, made, seconds, is_finished)


def make_predictor(clock: Clock | None = None, sessions: Sessions | None = None) -> Predictor:
    metrics = Metrics(CollectorRegistry())
    table = sessions if sessions is not None else Sessions()
    return Predictor(table, Watchers(), Journal(), metrics, clock or Clock())


def sample(predictor: Predictor, name: str, **labels: str) -> float:
    """The value of cachewise_predictor_<name>."""
    value = predictor.metrics.registry.get_sample_value(f"cachewise_predictor_{name}", labels)
    assert value is not None, f"no metric {name} {labels}"
    return value


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def predictor(clock: Clock) -> Predictor:
    return make_predictor(clock)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedStore]:
    server = EmbeddedStore(tmp_path / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def store(valkey: EmbeddedStore) -> AsyncIterator[Store]:
    client = Store(valkey.url)
    yield client
    await client.close()
