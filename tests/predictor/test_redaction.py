"""The engine hook redacts what it sends, the predictor what it reads from files: the same code."""

from __future__ import annotations

import inspect

from cachewise_engine_hook import redaction as redaction_of_the_hook
from cachewise_predictor import redaction


def test_the_predictor_and_the_engine_hook_redact_alike() -> None:
    assert inspect.getsource(redaction) == inspect.getsource(redaction_of_the_hook)
