"""vLLM's scheduler and CacheWise's, writing down what happens to them: what recording.py reads.

A server is started with --scheduler-cls on one of these classes. A line of JSON for each event;
times are seconds of the engine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from cachewise_engine_hook.scheduler import CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

PATH_VARIABLE = "CACHEWISE_RECORDING"


class _Recorded:
    """Put before a scheduler class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._path = Path(os.environ[PATH_VARIABLE])
        self._lines: list[str] = []
        self._queued: dict[str, float] = {}
        """When the engine got each request, which its loop takes between two steps."""
        self._watch_arrivals()
        self._began = 0.0
        self._is_idling = False

    def _note(self, event: str, **what: Any) -> None:
        self._lines.append(json.dumps({"event": event, "at": time.monotonic(), **what}) + "\n")

    def _watch_arrivals(self) -> None:
        make = Request.from_engine_core_request

        def made(*args: Any, **kwargs: Any) -> Request:
            request = make(*args, **kwargs)
            self._queued[request.request_id] = time.monotonic()
            return request

        Request.from_engine_core_request = made

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        self._note(
            "arrived",
            request=request.request_id,
            session=request.session_id,
            queued=self._queued.pop(request.request_id),
        )
        super().add_request(request, *args, **kwargs)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._began = time.monotonic()
        return super().schedule(*args, **kwargs)

    def update_from_output(self: Any, plan: Any, output: Any) -> Any:
        # Contexts are those after the step; a request that it finishes is gone afterwards.
        scheduled = plan.num_scheduled_tokens.items()
        work = [(tokens, self.requests[name].num_computed_tokens) for name, tokens in scheduled]
        outputs = super().update_from_output(plan, output)
        # The loop asks again every millisecond while it has nothing to run: one line is enough.
        if work or not self._is_idling:
            busy = self.has_unfinished_requests()
            self._note("step", began=self._began, work=work, goes_on=busy)
            with self._path.open("a") as recording:
                recording.writelines(self._lines)
            self._lines.clear()
        self._is_idling = not work
        return outputs

    def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(
            "finished",
            request=request.request_id,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            max_tokens=request.max_tokens,
            preemptions=request.num_preemptions,
            blocks=[name.hex() for name in request.block_hashes],
        )
        return super()._free_request(request, *args, **kwargs)


class RecordedScheduler(_Recorded, Scheduler):
    """Stock vLLM's."""


class RecordedCacheWise(_Recorded, CacheWiseScheduler):
    """CacheWise's, with the forecasts that it was sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self._hook is not None
        take = self._hook.take_forecast

        def noted(update: ForecastUpdate) -> None:
            self._note_forecast(update)
            take(update)

        self._hook.take_forecast = noted  # type: ignore[method-assign]

    def _note_forecast(self, update: ForecastUpdate) -> None:
        made = update.forecast
        self._note(
            "forecast",
            session=update.session,
            opened_at=update.opened_at,
            received_at=update.received_at,
            curve=made and (made.elapsed_s, made.remaining_s, made.source),
            ended=update.ended,
        )
