"""The embedded Valkey: one owner per folder, data on disk, restarts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.errors import StoreError
from cachewise_predictor.sessions import SessionState
from cachewise_predictor.store import Batch, Store

from .conftest import KEY


async def write(url: str) -> None:
    store = Store(url)
    await store.write(Batch("w", 1, {KEY: SessionState(1.0)}, []))
    await store.close()


async def count(url: str) -> int:
    store = Store(url)
    sessions = await store.load_sessions()
    await store.close()
    return len(sessions)


async def test_data_are_there_again_after_a_restart(tmp_path: Path) -> None:
    for sessions in (0, 1):
        server = EmbeddedStore(tmp_path)
        server.start()
        assert await count(server.url) == sessions
        await write(server.url)
        server.stop()


async def test_a_second_process_joins_the_server_and_does_not_stop_it(tmp_path: Path) -> None:
    owner, guest = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
    owner.start()
    guest.start()
    await write(guest.url)
    guest.stop()
    assert await count(owner.url) == 1
    owner.stop()


async def test_a_server_that_was_killed_is_started_again_with_its_data(
    valkey: EmbeddedStore,
) -> None:
    await write(valkey.url)
    assert valkey._server is not None and valkey._server._process is not None
    os.kill(valkey._server._process.pid, signal.SIGKILL)
    valkey._server._process.wait()
    valkey.ensure_running()
    assert await count(valkey.url) == 1


async def test_a_folder_with_a_long_or_odd_name_works(tmp_path: Path) -> None:
    for folder in (tmp_path / ("x" * 120), tmp_path / "100%_ü"):
        server = EmbeddedStore(folder)
        server.start()
        await write(server.url)
        server.stop()


def test_a_folder_with_a_space_is_refused_since_valkey_cannot_use_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="spaces.*--data-dir"):
        EmbeddedStore(tmp_path / "a folder").start()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/data.*--data-dir"):
        EmbeddedStore(tmp_path / "file" / "data").start()
