"""Secrets in arguments reach neither the store, nor its files, nor HTTP, nor the log."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_proto import predictor_pb2 as pb

from ..proto.test_redaction import COMMANDS, SECRET
from .test_main import FREE_PORTS, eventually, run, serving
from .test_rpc import event, report, started
from .test_train import turn, write

PLANTED = [*COMMANDS, "x" * 1_000_000 + f" password={SECRET}", f"password={SECRET} " * 50_000]


def planted(number: int, command: str) -> list[pb.Event]:
    """A session that has waited for the command once, and waits for it again."""
    call = pb.ToolCall(name="Bash", arguments=f'{{"command": "{command}"}}')
    ended = pb.TurnEnded(tool_calls=[call], outcome=pb.OUTCOME_TOOL)
    session = f"s{number}"
    return [
        event(session=session, turn="t0", age=9.0, turn_ended=ended),
        started(session=session, turn="t1", age=4.0),
        event(session=session, turn="t1", turn_ended=ended),
    ]


def everything_in(client: Any) -> bytes:
    """All keys and values of the store."""
    commands = {
        b"string": lambda key: client.get(key),
        b"hash": lambda key: client.hgetall(key),
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": lambda key: client.xrange(key),
        b"set": lambda key: client.smembers(key),
    }
    keys = client.keys()
    return repr([(key, commands[client.type(key)](key)) for key in keys]).encode()


def clean(text: bytes) -> bool:
    return SECRET.encode() not in text and SECRET.upper().encode() not in text


def test_planted_secrets_are_nowhere(
    tmp_path: Path, valkey: EmbeddedStore, capfd: pytest.CaptureFixture[str]
) -> None:
    client = redis.Redis.from_url(valkey.url)
    tools = [{"name": "Bash", "args": {"command": c}, "dur_q": "stamps"} for c in PLANTED]
    trace = write(tmp_path / "a.jsonl", [turn(tools=[tool]) for tool in tools])
    address = ["--redis-url", valkey.url]
    with serving(*address, *FREE_PORTS) as server:
        for number, command in enumerate(PLANTED):
            server.call("ReportEvents", report(*planted(number, command)))
        server.call("ReportEvents", report(event(session="", turn=SECRET)))
        eventually(lambda: client.xlen("{cachewise}:intervals") == len(PLANTED))
        eventually(lambda: client.exists("{cachewise}:model"))
        done = run("train", "--traces", str(trace), *address)
        assert done.returncode == 0, done.stderr
        pages = b"".join(
            urllib.request.urlopen(f"http://{server.http}{path}", timeout=10).read()
            for path in ("/", "/metrics", "/v1/model", "/readyz", "/healthz")
        )
        shown = run("explain", "--tool", "Bash", "--args", COMMANDS[0], *address)
        stored = everything_in(client)
    assert b"[redacted]" in stored and len(pages) > 1_000
    assert clean(stored)
    assert clean(pages)
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or clean(file.read_bytes()), file
    log = capfd.readouterr()
    texts = (log.out, log.err, done.stdout, done.stderr, shown.stdout, shown.stderr)
    assert "adopted" in log.err
    assert all(clean(text.encode()) for text in texts)
    client.close()
