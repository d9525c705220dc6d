"""Learning as its users see it: real processes, a real Valkey, forecasts over gRPC."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.store import LEASE_S
from cachewise_proto import predictor_pb2 as pb
from redis import Redis

from .test_main import FREE_PORTS, PROGRAM, Server, eventually, report_waits, run, serving

pytestmark = pytest.mark.timeout(900)

USUAL_S = {"Read": 0.3, "Bash": 3.0, "Task": 40.0}
"""Median waits of tools."""

PROMOTED_WITHIN_S = 120


class Agents:
    """Sessions whose tools take a while; the events tell when things happened, so nobody waits."""

    def __init__(self, server: Server) -> None:
        self._server, self._rng, self._turns = server, random.Random(0), 0

    def call(self, tool: str, seconds: float) -> None:
        """One tool call that took so long."""
        self._turns += 1
        session, turn = f"s{self._turns % 40}", f"t{self._turns}"
        calls = [pb.ToolCall(name=tool, arguments=json.dumps({"command": tool.lower()}))]
        ended = pb.TurnEnded(outcome=pb.OUTCOME_TOOL, tool_calls=calls)
        common = {"tenant": "acme", "session": session}
        events = [
            pb.Event(turn=turn, age_seconds=seconds, turn_ended=ended, **common),
            pb.Event(turn=f"{turn}+", age_seconds=0.0, turn_started=pb.TurnStarted(), **common),
        ]
        answer = self._server.call("ReportEvents", pb.ReportEventsRequest(events=events))
        assert (answer.accepted, answer.rejected) == (2, 0)

    def work(self, count: int, slower: dict[str, float] | None = None) -> None:
        """So many calls of each tool."""
        for _ in range(count):
            for tool, usual in USUAL_S.items():
                factor = (slower or {}).get(tool, 1.0)
                self.call(tool, factor * usual * self._rng.lognormvariate(0.0, 0.6))

    def work_at_random(self, count: int) -> None:
        for _ in range(count):
            for tool in USUAL_S:
                self.call(tool, 10 ** self._rng.uniform(-2, 3.5))


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^cachewise_predictor_{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def p50(server: Server, tool: str) -> float:
    """The median of a call that begins now, in a session without a past."""
    session = f"asks {time.monotonic_ns()}"
    kind = pb.TurnEnded(outcome=pb.OUTCOME_TOOL, tool_calls=[pb.ToolCall(name=tool)])
    event = pb.Event(tenant="acme", session=session, turn="t", turn_ended=kind)
    server.call("ReportEvents", pb.ReportEventsRequest(events=[event]))
    query = pb.ReuseQuery(tenant="acme", session=session)
    answer = server.call("ForecastReuse", pb.ForecastReuseRequest(queries=[query]))
    return float(answer.forecasts[0].forecast.quantiles[0].wait_seconds)


def test_a_change_is_followed_and_a_poisoned_batch_is_refused(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), *FREE_PORTS) as server:
        agents = Agents(server)
        agents.work(100)
        eventually(lambda: metric(server, "trainer_promotions_total") >= 1, 120)
        agents.work(60)
        eventually(lambda: metric(server, "trainer_lag_intervals") == 0)
        eventually(lambda: metric(server, "trainer_window_intervals") == 480)
        assert metric(server, "trainer_drifts_total") == 0

        for _ in range(10):  # ten calls at a time, 100 at most
            agents.work(10, {"Bash": 10.0})
            time.sleep(3)
            if metric(server, "trainer_drifts_total"):
                break
        assert metric(server, "trainer_drifts_total") == 1
        agents.work(40, {"Bash": 10.0})
        eventually(lambda: 15.0 < p50(server, "Bash") < 60.0, PROMOTED_WITHIN_S)
        assert p50(server, "Task") == pytest.approx(USUAL_S["Task"], rel=0.4)
        assert p50(server, "Read") == pytest.approx(USUAL_S["Read"], rel=0.4)

        medians = {tool: p50(server, tool) for tool in USUAL_S}
        agents.work_at_random(100)
        eventually(lambda: metric(server, "trainer_spoiled_total") >= 1, 120)
        assert {tool: p50(server, tool) for tool in USUAL_S} == pytest.approx(medians, rel=0.4)
        assert metric(server, "trainer_lag_intervals") == 0
        listed = run("models", "list", "--data-dir", str(tmp_path)).stdout
        assert " drift " in listed


class TrainerProcess:
    """A trainer that an operator started. has_lease: whether it said so."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "trainer", "--redis-url", url], stderr=subprocess.PIPE, text=True
        )
        self.has_lease = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.has_lease = self.has_lease or "has the lease" in line

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def two_trainers(url: str) -> Iterator[tuple[TrainerProcess, TrainerProcess]]:
    pair = (TrainerProcess(url), TrainerProcess(url))
    try:
        yield pair
    finally:
        for trainer in pair:
            if trainer.process.poll() is None:
                trainer.end(signal.SIGTERM)


def test_when_the_trainer_that_trains_is_killed_the_other_one_takes_over(
    valkey: EmbeddedStore,
) -> None:
    with (
        serving("--no-trainer", "--redis-url", valkey.url, *FREE_PORTS) as server,
        two_trainers(valkey.url) as pair,
    ):
        eventually(lambda: any(trainer.has_lease for trainer in pair), 60)
        first, second = sorted(pair, key=lambda trainer: not trainer.has_lease)
        report_waits(server, 30)
        eventually(lambda: metric(server, "trainer_promotions_total") == 1, 120)
        assert not second.has_lease
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: second.has_lease, LEASE_S + 30)
        report_waits(server, 30, first=30)
        eventually(lambda: metric(server, "trainer_window_intervals") == 60, 60)
        eventually(lambda: server.get("/v1/model")["samples"] > 40, 120)
        assert second.end(signal.SIGTERM) == 0
        with Redis.from_url(valkey.url) as redis:
            assert not redis.exists("{cachewise}:trainer:lease")


def trainer_of(server: Server) -> int:
    """The process id of its trainer."""
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for child in children.read_text().split():
            if b"trainer" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
    raise AssertionError("no trainer")


def is_running(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_trainer_of_serve_ends_with_it(valkey: EmbeddedStore, number: int) -> None:
    with serving("--redis-url", valkey.url, *FREE_PORTS) as server:
        eventually(lambda: metric(server, "trainer_up") == 1, 60)
        trainer = trainer_of(server)
        assert (
            os.getpriority(os.PRIO_PROCESS, trainer)
            > os.getpriority(os.PRIO_PROCESS, server.process.pid)
            or os.getpriority(os.PRIO_PROCESS, trainer) == 19
        )
        assert os.getsid(trainer) == os.getsid(server.process.pid)
        assert os.getpgid(trainer) == trainer
        server.end(number)
        eventually(lambda: not is_running(trainer))


def test_a_trainer_that_is_killed_is_started_again(valkey: EmbeddedStore) -> None:
    with serving("--redis-url", valkey.url, *FREE_PORTS) as server:
        eventually(lambda: metric(server, "trainer_up") == 1, 60)
        first = trainer_of(server)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not is_running(first))

        def has_another() -> bool:
            with contextlib.suppress(AssertionError):
                return trainer_of(server) != first
            return False

        eventually(has_another, 60)
        assert server.end(signal.SIGTERM) == 0
