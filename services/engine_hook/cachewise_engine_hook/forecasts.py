"""The forecast link: a thread that keeps one WatchForecasts stream open, and the scheduler's inbox.

Down the stream come forecasts for the sessions that this replica has announced; the scheduler takes
them from the inbox at the start of a step. Nothing here is called on the step's path but announce,
withdraw and take, which touch memory only. The predictor may be down, slow or gone at any time: the
link tries again with growing pauses, and after a reconnect announces every session anew, so that
the forecasts that were missed come at once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import grpc
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto import predictor_pb2_grpc as rpc

from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.sessions import ForecastUpdate

logger = logging.getLogger("vllm.cachewise.forecasts")

_INBOX_SIZE = 10_000
_BATCH = 1_000
_MOST_CHANGES = 100_000
"""That wait to be sent. Beyond, the predictor reads no more, and the stream is begun anew."""
_MOST_POINTS = 1_000
"""Of one curve: so a faulty predictor cannot fill the engine's memory through the inbox."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

Change = tuple[str, bool]
"""A session, and whether it is held now."""


class ForecastLink:
    """Announces sessions to the predictor and receives their forecasts, in a thread of its own."""

    def __init__(
        self,
        predictor: str,
        replica: str,
        tenant: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """predictor: host:port. clock: the engine's, in seconds."""
        self.connected = False
        self.received: Counter[str] = Counter()
        """Forecasts that arrived, by source; written by the link's thread only."""
        self.malformed = 0
        self._predictor, self._replica, self._tenant = predictor, replica, tenant
        self._clock = clock
        self._held: dict[str, None] = {}
        self._changes: SimpleQueue[Change | None] | None = None
        self._inbox: deque[ForecastUpdate] = deque(maxlen=_INBOX_SIZE)
        self._stopping = threading.Event()
        self._call: grpc.Call | None = None
        # The channel is made inside the thread: one made before a fork would not work after it.
        self._thread = threading.Thread(target=self._run, name="cachewise-forecasts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        self._stopping.set()
        if (call := self._call) is not None:
            call.cancel()
        self._thread.join(timeout_s)

    # ---- called by the scheduler: memory only ---------------------------------------------------

    def announce(self, session: str) -> None:
        """This replica holds the session now."""
        if session not in self._held:
            self._held[session] = None
            self._tell((session, True))

    def withdraw(self, session: str) -> None:
        """This replica has forgotten the session."""
        if session in self._held:
            del self._held[session]
            self._tell((session, False))

    def take(self, most: int = _BATCH) -> list[ForecastUpdate]:
        """What has arrived since the last call, oldest first, at most so many."""
        inbox = self._inbox
        return [inbox.popleft() for _ in range(min(len(inbox), most))]

    def _tell(self, change: Change) -> None:
        # While there is no stream nothing piles up: the next one starts from _held.
        if (changes := self._changes) is not None:
            changes.put(change)
            if changes.qsize() > _MOST_CHANGES:
                self._changes = None
                if (call := self._call) is not None:
                    call.cancel()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s, reported = _FIRST_PAUSE_S, False
        while not self._stopping.is_set():
            try:
                self._watch()
            except (grpc.RpcError, grpc.FutureTimeoutError):
                pass
            except Exception:
                logger.exception("the forecast link failed; it goes on")
            if self.connected:
                pause_s, reported = _FIRST_PAUSE_S, False
            self.connected = False
            if not reported and not self._stopping.is_set():
                reported = True
                logger.warning(
                    "no predictor at %s: without forecasts blocks go in stock vLLM's order; "
                    "the link keeps trying",
                    self._predictor,
                )
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _watch(self) -> None:
        """One stream, from its opening to its end."""
        changes: SimpleQueue[Change | None] = SimpleQueue()
        with grpc.insecure_channel(self._predictor, options=_CHANNEL_OPTIONS) as channel:
            grpc.channel_ready_future(channel).result(timeout=_LONGEST_PAUSE_S)
            self._call, self._changes = None, changes
            stub = rpc.PredictorServiceStub(channel)
            try:
                call = stub.WatchForecasts(self._announcements(changes))
                self._call = call
                if self._changes is None:  # there have been too many meanwhile
                    call.cancel()
                self.connected = True
                logger.info("predictor %s connected", self._predictor)
                for response in call:
                    self._receive(response)
            finally:
                self._changes = None
                changes.put(None)

    def _announcements(
        self, changes: SimpleQueue[Change | None]
    ) -> Iterator[pb.WatchForecastsRequest]:
        """First every session held, then the changes in batches; ends at None."""
        held = list(self._held)
        yield self._request([(session, True) for session in held[:_BATCH]])
        for i in range(_BATCH, len(held), _BATCH):
            yield self._request([(session, True) for session in held[i : i + _BATCH]])
        while (change := changes.get()) is not None:
            batch = [change]
            try:
                while len(batch) < _BATCH and (change := changes.get_nowait()) is not None:
                    batch.append(change)
            except Empty:
                pass
            yield self._request(batch)
            if change is None:
                return

    def _request(self, changes: list[Change]) -> pb.WatchForecastsRequest:
        last = dict(changes)  # of several changes of one session the last holds
        query = [(pb.ReuseQuery(tenant=self._tenant, session=s), held) for s, held in last.items()]
        return pb.WatchForecastsRequest(
            replica=self._replica,
            sessions_added=[q for q, held in query if held],
            sessions_removed=[q for q, held in query if not held],
        )

    def _receive(self, response: pb.WatchForecastsResponse) -> None:
        now = self._clock()
        for message in response.forecasts:
            try:
                update = _update_from(message, now)
            except ValueError:
                self.malformed += 1
                continue
            self._inbox.append(update)
            if update.forecast is not None:
                self.received[update.forecast.source] += 1


def _update_from(message: pb.SessionForecast, now: float) -> ForecastUpdate:
    """The update that the message carries. Raises ValueError where it cannot be one."""
    if not message.session or not 0 <= message.elapsed_seconds < float("inf"):
        raise ValueError("a forecast needs a session and an elapsed time")
    forecast = None
    if message.HasField("forecast"):
        curve = message.forecast
        if len(curve.elapsed_seconds) > _MOST_POINTS:
            raise ValueError(f"a forecast has at most {_MOST_POINTS} points")
        source = pb.ForecastSource.Name(curve.source).removeprefix("FORECAST_SOURCE_").lower()
        forecast = Forecast(
            tuple(curve.elapsed_seconds),
            tuple(curve.remaining_seconds),
            source,
            curve.sample_count,
            curve.model_version,
        )
    opened_at = now - message.elapsed_seconds
    waits_for_human = message.outcome == pb.OUTCOME_HUMAN
    return ForecastUpdate(
        message.session, opened_at, forecast, message.session_ended, now, waits_for_human
    )
