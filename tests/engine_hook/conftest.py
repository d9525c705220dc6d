from __future__ import annotations

import os

import httpx
import pytest

from .middleware_stack import Stack, running
from .recording_predictor import RecordingPredictor, serve

# Before vLLM is imported: nothing is fetched, and nothing is reported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture
def predictor():
    return RecordingPredictor()


@pytest.fixture
def stack(predictor):
    with serve(predictor) as address:
        stack = Stack(address)
        with running(stack.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            stack.client = client
            yield stack
