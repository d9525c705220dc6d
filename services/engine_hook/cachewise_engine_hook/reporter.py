"""Takes events to the predictor without ever making the event loop wait.

`report` appends to a bounded queue and returns. One thread, started by the first event, takes
batches from the queue and sends them; its gRPC channel is made in that thread, so after any fork.
When the predictor is away, the batch goes back to the front of the queue and the thread waits,
longer each time, with jitter; a full queue drops its oldest events and counts them. A batch may
arrive twice (its answer was lost): the predictor takes each event once.

The only file of the middleware's side that knows the protobuf messages.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto.predictor_pb2_grpc import PredictorServiceStub

from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_engine_hook.tool_calls import Outcome, ToolCall

# A child of vLLM's logger, so that its handlers and levels hold for ours.
logger = logging.getLogger("vllm.cachewise")

MAX_BATCH_WEIGHT = 256
"""Events plus tool calls: about 1 MB at the very most; gRPC servers take 4 MiB by default."""
RPC_TIMEOUT_S = 5.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0

# gRPC's own reconnecting waits up to two minutes by default. Pings go out only during a call, so
# that a server with default settings never finds them too many.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
)

_OUTCOMES = {
    Outcome.UNSPECIFIED: pb.OUTCOME_UNSPECIFIED,
    Outcome.TOOL: pb.OUTCOME_TOOL,
    Outcome.HUMAN: pb.OUTCOME_HUMAN,
    Outcome.LENGTH: pb.OUTCOME_LENGTH,
    Outcome.ABORTED: pb.OUTCOME_ABORTED,
}


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The session's next request has arrived. session: its hash. at_s: monotonic time."""

    session: str
    turn: str
    at_s: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The response to the same turn is over. session: its hash. at_s: monotonic time."""

    session: str
    turn: str
    at_s: float
    tool_calls: tuple[ToolCall, ...]
    outcome: Outcome


Event = TurnStarted | TurnEnded


class Reporter(Protocol):
    def report(self, event: Event) -> None:
        """Takes an event; never waits, never raises."""

    def close(self, timeout_s: float) -> None:
        """Sends what is queued, but takes no longer than the timeout. No event may follow."""


class NullReporter:
    """There is no predictor."""

    def report(self, event: Event) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass


class GrpcReporter:
    """address: host:port. tenant, replica: as in every event of this server. For one event loop."""

    def __init__(
        self, address: str, tenant: str, replica: str, queue_size: int, metrics: MiddlewareMetrics
    ) -> None:
        self._address = address
        self._tenant = tenant
        self._replica = replica
        self._queue_size = queue_size
        self._metrics = metrics
        self._queue: deque[Event] = deque()
        self._changed = threading.Condition()
        self._close_by_s: float | None = None
        self._thread: threading.Thread | None = None

    def report(self, event: Event) -> None:
        kind = "turn_started" if isinstance(event, TurnStarted) else "turn_ended"
        self._metrics.events.labels(kind).inc()
        with self._changed:
            self._queue.append(event)
            self._drop_oldest(self._queue_size)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cachewise-reporter", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._close_by_s = time.monotonic() + timeout_s
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        with grpc.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            stub = PredictorServiceStub(channel)
            failures = 0
            while batch := self._take_batch():
                if self._send(stub, batch, failures):
                    failures = 0
                    continue
                failures += 1
                if self._put_back(batch):
                    return
                self._wait_before_retry(failures)

    def _take_batch(self) -> Sequence[Event]:
        """Waits for events. Empty: the reporter is closed and the queue is empty."""
        batch: list[Event] = []
        weight = 0
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._close_by_s is not None)
            while self._queue and weight < MAX_BATCH_WEIGHT:
                batch.append(event := self._queue.popleft())
                weight += 1 + (len(event.tool_calls) if isinstance(event, TurnEnded) else 0)
        return batch

    def _send(self, stub: PredictorServiceStub, batch: Sequence[Event], failures: int) -> bool:
        """Whether the predictor has taken the batch. failures: how often in a row it has not."""
        timeout_s = RPC_TIMEOUT_S
        if self._close_by_s is not None:
            timeout_s = min(timeout_s, self._close_by_s - time.monotonic())
        now_s = time.monotonic()
        request = pb.ReportEventsRequest(events=[self._message(event, now_s) for event in batch])
        try:
            response = stub.ReportEvents(request, timeout=timeout_s)
        except grpc.RpcError as error:
            self._metrics.events_failed.inc(len(batch))
            if not failures:
                reason = error.code().name if isinstance(error, grpc.Call) else error
                logger.warning(
                    "The predictor at %s takes no events (%s): up to %d of them wait for it",
                    *(self._address, reason, self._queue_size),
                )
            return False
        if failures:
            logger.warning("The predictor at %s takes events again", self._address)
        if response.rejected:
            logger.warning("The predictor finds %d events malformed", response.rejected)
        return True

    def _put_back(self, batch: Sequence[Event]) -> bool:
        """Whether the reporter is closed: then nothing is tried again."""
        with self._changed:
            self._queue.extendleft(reversed(batch))
            is_closed = self._close_by_s is not None
            self._drop_oldest(0 if is_closed else self._queue_size)
        return is_closed

    def _wait_before_retry(self, failures: int) -> None:
        """failures in a row. Closing ends the wait: there is one last try."""
        delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16))
        with self._changed:
            self._changed.wait_for(
                lambda: self._close_by_s is not None, delay_s * random.uniform(0.5, 1.0)
            )

    def _drop_oldest(self, size: int) -> None:
        """Down to the size; with the lock held."""
        while len(self._queue) > size:
            self._queue.popleft()
            self._metrics.events_dropped.inc()

    def _message(self, event: Event, now_s: float) -> pb.Event:
        message = pb.Event(
            tenant=self._tenant,
            session=event.session,
            turn=event.turn,
            replica=self._replica,
            age_seconds=max(0.0, now_s - event.at_s),
        )
        if isinstance(event, TurnStarted):
            message.turn_started.SetInParent()
        else:
            message.turn_ended.outcome = _OUTCOMES[event.outcome]
            for call in event.tool_calls:
                message.turn_ended.tool_calls.add(
                    id=call.id, name=call.name, arguments=call.arguments
                )
        return message
