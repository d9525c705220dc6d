"""A predictor and its embedded Valkey as processes of their own, and what they use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from cachewise_bench.servers import ServerError

_PROGRAM = (sys.executable, "-m", "cachewise_predictor")
_READY = re.compile(r"cachewise-predictor ready grpc=(\S+) http=(\S+)\n")
_STREAM = "{cachewise}:intervals"
_GRACE_S = 60.0


@dataclass
class PredictorProcess:
    """grpc, http: HOST:PORT."""

    process: subprocess.Popen[str]
    grpc: str
    http: str
    store: Any

    def version(self) -> str:
        """Of the model that serves; begins with its number of intervals."""
        with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=30) as answer:
            return str(json.load(answer)["model"])

    def stored_intervals(self) -> int:
        """All that were ever appended to the stream, by the predictor's store task."""
        try:
            return int(self.store.xinfo_stream(_STREAM)["entries-added"])
        except redis.ResponseError:  # no interval yet
            return 0

    def cpu_s(self) -> float:
        """Processor time of the predictor so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        """The most memory that was resident at once."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1_024


@contextmanager
def running_predictor(data_dir: Path, log: Path) -> Iterator[PredictorProcess]:
    """Raises ServerError with the end of the log if it does not start."""
    ports = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    command = (*_PROGRAM, "serve", "--data-dir", str(data_dir), *ports)
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        match = _READY.fullmatch(process.stdout.readline())
        if match is None:
            raise ServerError(f"the predictor does not start: {log.read_text()[-2_000:]}")
        socket = data_dir.resolve() / "valkey.sock"
        store = redis.Redis(unix_socket_path=str(socket))
        yield PredictorProcess(process, match[1], match[2], store)
        store.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_GRACE_S)
        if process.stdout is not None:
            process.stdout.close()


@dataclass(frozen=True)
class Training:
    """wall_s and cpu_s: of the whole process, its start included."""

    wall_s: float
    cpu_s: float
    peak_mb: float


class TrainingProcess:
    """`cachewise-predictor train`, beside a running predictor or alone."""

    def __init__(self, traces: Path, data_dir: Path) -> None:
        self._start = time.monotonic()
        command = (*_PROGRAM, "train", "--traces", str(traces), "--data-dir", str(data_dir))
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def wait(self) -> Training:
        """Blocks until it ends. Raises ServerError if it fails."""
        _, status, usage = os.wait4(self._process.pid, 0)
        wall_s = time.monotonic() - self._start
        assert self._process.stderr is not None
        errors = self._process.stderr.read()
        self._process.stderr.close()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise ServerError(f"training failed: {errors[-2_000:]}")
        return Training(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1_024)
