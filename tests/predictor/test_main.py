"""The program as its users run it: a subprocess, killed and restarted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto.predictor_pb2_grpc import PredictorServiceStub

from .test_rpc import QUERY, ended, report, started
from .test_train import turn, write

pytestmark = pytest.mark.timeout(300)

PROGRAM = [sys.executable, "-m", "cachewise_predictor"]
FREE_PORTS = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]


class Server:
    """A running `serve`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"cachewise-predictor ready grpc=(\S+) http=(\S+)\n", line)
        assert match, f"not ready: {line!r}"
        self.grpc, self.http = match.groups()

    def call(self, method: str, request: Any) -> Any:
        with grpc.insecure_channel(self.grpc) as channel:
            return getattr(PredictorServiceStub(channel), method)(request, timeout=10)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return json.load(answer)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(20)


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


def forecast(server: Server) -> pb.SessionForecast:
    return server.call("ForecastReuse", pb.ForecastReuseRequest(queries=[QUERY])).forecasts[0]


def report_waits(server: Server, count: int, seconds: float = 5.0, first: int = 0) -> None:
    """So many finished waits of Bash, each of a session of its own."""
    for number in range(first, first + count):
        session = f"waits {number}"
        events = [
            ended("Bash", session=session, age=seconds + 1),
            started(turn="t1", session=session, age=1),
        ]
        server.call("ReportEvents", report(*events))


def eventually(condition: Any, most_s: float = 60) -> None:
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_predictor_comes_back_with_its_open_intervals_and_its_model(
    tmp_path: Path,
) -> None:
    arguments = ["--data-dir", str(tmp_path), *FREE_PORTS]
    with serving(*arguments) as server:
        events = [ended("Bash", age=9.0), started(turn="t1", age=6.0), ended("Task", turn="t1")]
        assert server.call("ReportEvents", report(*events)).accepted == 3
        report_waits(server, 30)
        eventually(lambda: server.get("/v1/model")["samples"] > 20, 90)
        version = server.get("/readyz")["model"]
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with serving(*arguments) as server:
        assert forecast(server).turn == "t1"
        assert forecast(server).forecast.model_version == version
        assert server.end(signal.SIGTERM) == 0
    assert no_server_in(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_ends_the_streams_and_leaves_nothing_running(
    tmp_path: Path, number: int
) -> None:
    with serving("--data-dir", str(tmp_path), *FREE_PORTS) as server:
        with grpc.insecure_channel(server.grpc) as channel:
            stream = PredictorServiceStub(channel).WatchForecasts(iter(()))
            assert list(stream) == []
        assert server.end(number) == 0
    assert no_server_in(tmp_path)


def test_ctrl_c_at_a_terminal_reaches_the_embedded_store_too_and_still_stores_everything(
    tmp_path: Path,
) -> None:
    arguments = ["--data-dir", str(tmp_path), *FREE_PORTS]
    with serving(*arguments) as server:
        server.call("ReportEvents", report(ended("Bash", age=9.0)))
        for line in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
            for child in line.read_text().split():
                os.kill(int(child), signal.SIGINT)
        assert server.end(signal.SIGINT) == 0
    with serving(*arguments) as server:
        assert forecast(server).turn == "t0"


def test_serving_goes_on_when_the_store_of_redis_url_goes_away(valkey: EmbeddedStore) -> None:
    with serving("--redis-url", valkey.url, *FREE_PORTS) as server:
        assert server.get("/readyz")["store"] == "up"
        assert valkey._server is not None and valkey._server._process is not None
        valkey._server._process.kill()
        server.call("ReportEvents", report(ended("Bash")))
        eventually(lambda: server.get("/readyz")["store"] == "down")
        assert forecast(server).HasField("forecast")
        valkey._server._process.wait()
        valkey.ensure_running()
        eventually(lambda: server.get("/readyz")["store"] == "up")
        assert server.end(signal.SIGTERM) == 0


def test_training_beside_a_running_server_is_adopted(tmp_path: Path) -> None:
    traces = write(tmp_path / "a.jsonl", ["broken", *[turn(reuse_s=30 + n) for n in range(60)]])
    with serving("--data-dir", str(tmp_path / "data"), *FREE_PORTS) as server:
        done = run("train", "--traces", str(traces), "--data-dir", str(tmp_path / "data"))
        assert done.returncode == 0, done.stderr
        assert "model 60-" in done.stdout
        assert f"{traces}:1: " in done.stderr
        eventually(lambda: server.get("/v1/model")["samples"] == 60)
        data = ("--data-dir", str(tmp_path / "data"))
        done = run("explain", *data, "--tool", "Bash", "--args", "ls")
        assert "source: cluster, 60 intervals" in done.stdout, done.stderr
        assert "no clusters" in run("clusters", *data).stdout
        assert "* 60-" in run("models", "list", *data).stdout


@pytest.mark.parametrize("option", ["--grpc", "--http"])
def test_a_port_in_use_is_a_clear_message_and_exit_code_1(tmp_path: Path, option: str) -> None:
    with serving("--data-dir", str(tmp_path / "a"), *FREE_PORTS) as server:
        address = server.grpc if option == "--grpc" else server.http
        done = run("serve", "--data-dir", str(tmp_path / "b"), *FREE_PORTS, option, address)
    assert done.returncode == 1
    assert f"{option}: cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "--grpc", "nonsense"], 1, "--grpc: 'nonsense' is not HOST:PORT"),
        (["train", "--traces", "nowhere", "--data-dir", "{}"], 1, "nowhere: no such file"),
        (["train", "--traces", "x", "--redis-url", "redis://127.0.0.1:1"], 1, "does not answer"),
        (["train"], 2, "--traces"),
        ([], 2, "COMMAND"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run(*(argument.format(tmp_path) for argument in arguments))
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert message in done.stderr


def test_help_has_examples_and_defaults() -> None:
    assert "examples:" in run("--help").stdout
    assert "127.0.0.1:50051" in run("serve", "--help").stdout


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=200)


def no_server_in(folder: Path) -> bool:
    """Whether no valkey-server works in the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd") == str(folder.resolve()):
                return False
    return True
