"""The tiny model, made once for the tests that need its tokenizer (a few seconds)."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachewise_bench.script import Tokenizer
from cachewise_bench.tiny_model import ensure_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer(tiny_model)
