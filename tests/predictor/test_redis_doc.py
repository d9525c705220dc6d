"""docs/redis.md lists exactly the keys that a running service writes, with types and lives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cachewise_predictor import store as module
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.published import Pointer
from redis import Redis

from .test_main import FREE_PORTS, eventually, run, serving
from .test_rpc import ended, report, started

pytestmark = pytest.mark.timeout(300)

DOC = Path(__file__).parents[2] / "docs" / "redis.md"


def documented() -> dict[str, tuple[str, int | None, str]]:
    """Type, seconds to live (None: for ever) and bound by key; parts that vary as <name>."""
    rows = re.findall(
        r"^\| `(\S+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", DOC.read_text("utf-8"), re.MULTILINE
    )
    return {
        key: (
            kind,
            None if life.startswith("none") else int(life.split()[0].replace(",", "")),
            bound,
        )
        for key, kind, life, bound in rows
    }


def pattern(key: str) -> str:
    """A real key as the document writes it."""
    key = re.sub(r"(:writer:).*", r"\1<id>", key)
    return re.sub(r"(\}:model:).*", r"\1<version>", key)


def test_the_document_lists_every_key_with_its_type_and_life(valkey: EmbeddedStore) -> None:
    redis = Redis.from_url(valkey.url)
    with serving("--redis-url", valkey.url, *FREE_PORTS) as server:
        for number in range(30):
            events = [
                ended("Bash", turn=f"t{number}", age=9.0),
                started(turn=f"t{number + 1}", age=4.0),
            ]
            server.call("ReportEvents", report(*events))
        eventually(lambda: redis.exists("{cachewise}:model"), 60)
        (version,) = redis.lrange("{cachewise}:models", 0, -1)
        done = run("models", "rollback", version.decode(), "--redis-url", valkey.url)
        assert done.returncode == 0, done.stderr
        eventually(lambda: redis.exists("{cachewise}:trainer"))
        found = {key.decode(): redis.type(key).decode() for key in redis.scan_iter()}
        lives = {pattern(key): redis.ttl(key) for key in found}
    table = documented()
    assert {pattern(key): kind for key, kind in found.items()} == {
        key: kind for key, (kind, _, _) in table.items()
    }
    for key, (_, life, _) in table.items():
        assert lives[key] == -1 if life is None else 0 <= lives[key] <= life, key
    redis.close()


def test_the_document_tells_the_bounds_of_the_code() -> None:
    table = documented()
    bounds = {
        "sessions": module.MAX_STORED_SESSIONS,
        "intervals": module.MAX_INTERVALS,
        "model": len(Pointer._fields),
        "models": module.MODELS_KEPT,
        "left-out": module.MAX_LEFT_OUT,
        "trainer": len(module.TrainerStatus.__dataclass_fields__),
    }
    for name, bound in bounds.items():
        assert f"{bound:,} " in table["{cachewise}:" + name][2] + " ", name
    assert table["{cachewise}:trainer:lease"][1] == module.LEASE_S
    days = module.MAX_AGE_S / 86_400
    assert f"each entry {days:.0f} days" in DOC.read_text("utf-8")
