"""A predictor and its embedded Valkey as processes of their own, and what they use."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from cachewise_bench.servers import ServerError

_PROGRAM = (sys.executable, "-m", "cachewise_predictor")
_READY = re.compile(r"cachewise-predictor ready grpc=(\S+) http=(\S+)\n")
_STREAM, _TRAINER = "{cachewise}:intervals", "{cachewise}:trainer"
_GRACE_S = 60.0


@dataclass
class PredictorProcess:
    """grpc, http: HOST:PORT."""

    process: subprocess.Popen[str]
    grpc: str
    http: str
    store: Any

    def stored_intervals(self) -> int:
        """All that were ever appended to the stream, by the predictor's store task."""
        try:
            return int(self.store.xinfo_stream(_STREAM)["entries-added"])
        except redis.ResponseError:  # no interval yet
            return 0

    def trainer(self) -> dict[str, float]:
        """What the trainer tells about itself; empty before it has told anything."""
        return {k.decode(): float(v) for k, v in self.store.hgetall(_TRAINER).items()}

    def cpu_s(self) -> float:
        """Processor time of the predictor so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> dict[str, float]:
        """The most memory that was resident at once: of the predictor, its trainer and Valkey."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = {"predictor": _peak_mb(self.process.pid)}
        for child in map(int, children.split()):
            command = Path(f"/proc/{child}/cmdline").read_text()
            found["trainer" if "cachewise_predictor" in command else "valkey"] = _peak_mb(child)
        return found


def _peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
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


def train(traces: Path, data_dir: Path) -> None:
    """`cachewise-predictor train`. Raises ServerError if it fails."""
    command = (*_PROGRAM, "train", "--traces", str(traces), "--data-dir", str(data_dir))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"training failed: {done.stderr[-2_000:]}")
