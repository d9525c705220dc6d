"""The processes of a run, and the predictor with its store.

Each runs in a process group of its own, writes to a log file, and is gone with all its children
when its context ends, however it ends: error, Ctrl-C, SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""

TAIL_LINES = 25


class ServerError(RuntimeError):
    """A server did not start or died; the message ends with the end of its log."""


@dataclass(frozen=True)
class Process:
    """A server that runs."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def fail(self, what: str) -> ServerError:
        """The error to raise when the process did something wrong."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        tail = "\n".join(f"    {line[:400]}" for line in lines) or "    (nothing)"
        return ServerError(f"{self.name} {what}. The end of its log, {self.log}:\n{tail}")

    def check(self) -> None:
        """Raises ServerError if the process has ended."""
        if (code := self.popen.poll()) is not None:
            raise self.fail(f"ended with exit code {code}")


@contextmanager
def running(
    name: str, command: Sequence[str], log: Path, environ: Mapping[str, str]
) -> Iterator[Process]:
    """Starts a process; at the end stops it and every process of its group."""
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    try:
        yield Process(name, popen, log)
    finally:
        _stop(popen)


def _stop(popen: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL for what is left of the group: also for children of a dead parent."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()


def predictor_command(data: Path) -> list[str]:
    """A predictor with an embedded store below data, on free ports."""
    return [
        *(sys.executable, "-m", "cachewise_predictor", "serve", "--data-dir", str(data)),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"),
    ]


@dataclass(frozen=True)
class PredictorAddress:
    """host:port of the predictor's two servers."""

    grpc: str
    http: str


_READY = re.compile(r"^cachewise-predictor ready grpc=(\S+) http=(\S+)$", re.MULTILINE)


async def predictor_ready(process: Process, timeout_s: float) -> PredictorAddress:
    """Waits for the line that says where the predictor listens."""
    deadline = time.monotonic() + timeout_s
    while not (found := _READY.search(process.log.read_text(errors="replace"))):
        process.check()
        if time.monotonic() > deadline:
            raise process.fail(f"was not ready after {timeout_s:.0f} s; try a longer --timeout")
        await asyncio.sleep(0.1)
    return PredictorAddress(*found.groups())


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
