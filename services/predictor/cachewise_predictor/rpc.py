"""gRPC in and out: protobuf becomes the dataclasses of events.py and back. No decisions here."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Any

import grpc
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto.predictor_pb2_grpc import (
    PredictorServiceServicer,
    add_PredictorServiceServicer_to_server,
)
from cachewise_proto.redaction import MAX_RAW_CHARS, redact
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from .errors import ConfigError
from .events import (
    Event,
    Forecast,
    SessionEnded,
    SessionForecast,
    SessionKey,
    Source,
    ToolCall,
    TurnEnded,
    TurnStarted,
    Wait,
)
from .interceptor import ErrorsAndTimes
from .service import Predictor
from .sessions import TTL_S
from .watchers import Watcher

SERVICE = "cachewise.v1.PredictorService"
MAX_ID = 256
"""Characters of a tenant, session or turn; a longer one is malformed."""

MAX_TOOL_NAME = 128
MAX_TOOL_CALLS = 32
"""Tool calls of one turn beyond these, and the rest of a longer name, are left out."""

_OPTIONS = (
    # Engines ping every 30 s, idle or not; by default a server closes such a connection after a
    # few pings (GOAWAY too_many_pings).
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # And we ping, to notice engines that are gone without a word.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A second server on the port must fail, not share it.
    ("grpc.so_reuseport", 0),
)

_WAITS = {
    pb.OUTCOME_TOOL: Wait.TOOL,
    pb.OUTCOME_HUMAN: Wait.HUMAN,
    pb.OUTCOME_LENGTH: Wait.LENGTH,
    pb.OUTCOME_ABORTED: Wait.ABORTED,
}
_OUTCOMES: dict[Wait | None, pb.Outcome.ValueType] = {
    **{wait: outcome for outcome, wait in _WAITS.items()},
    None: pb.OUTCOME_UNSPECIFIED,
}
_SOURCES = {
    Source.CLUSTER: pb.FORECAST_SOURCE_CLUSTER,
    Source.TOOL: pb.FORECAST_SOURCE_TOOL,
    Source.TENANT: pb.FORECAST_SOURCE_TENANT,
    Source.GLOBAL: pb.FORECAST_SOURCE_GLOBAL,
    Source.PRIOR: pb.FORECAST_SOURCE_PRIOR,
}


class PredictorServicer(PredictorServiceServicer):
    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    async def ReportEvents(
        self, request: pb.ReportEventsRequest, context: Any
    ) -> pb.ReportEventsResponse:
        events = [event for message in request.events if (event := to_event(message)) is not None]
        rejected = len(request.events) - len(events)
        self._predictor.report(events)
        self._predictor.metrics.count_rejected(rejected)
        return pb.ReportEventsResponse(accepted=len(events), rejected=rejected)

    async def ForecastReuse(
        self, request: pb.ForecastReuseRequest, context: Any
    ) -> pb.ForecastReuseResponse:
        response = pb.ForecastReuseResponse()
        for key in _keys(request.queries):
            _fill(response.forecasts.add(), self._predictor.forecast(key))
        return response

    async def WatchForecasts(
        self, requests: AsyncIterator[pb.WatchForecastsRequest], context: Any
    ) -> AsyncIterator[pb.WatchForecastsResponse]:
        watcher = self._predictor.watchers.add()
        self._predictor.metrics.watchers.inc()
        reader = asyncio.create_task(self._read(requests, watcher))
        try:
            await context.send_initial_metadata(())  # the replica sees that it is connected
            async for forecasts in self._predictor.watch(watcher):
                response = pb.WatchForecastsResponse()
                for forecast in forecasts:
                    _fill(response.forecasts.add(), forecast)
                yield response
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._predictor.watchers.remove(watcher)
            self._predictor.metrics.watchers.dec()

    async def _read(
        self, requests: AsyncIterator[pb.WatchForecastsRequest], watcher: Watcher
    ) -> None:
        """Takes a replica's announcements; the end of them, or an error, closes its stream."""
        try:
            async for request in requests:
                added, removed = _keys(request.sessions_added), _keys(request.sessions_removed)
                self._predictor.announce(watcher, added, removed)
        finally:
            watcher.close()


class RpcServer:
    """The gRPC server with health and reflection. address: host:port, port 0 for a free one."""

    def __init__(self, predictor: Predictor, address: str) -> None:
        self._predictor = predictor
        interceptor = ErrorsAndTimes(SERVICE, predictor.metrics)
        self._server = grpc.aio.server(interceptors=[interceptor], options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        add_PredictorServiceServicer_to_server(PredictorServicer(predictor), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise ConfigError(f"--grpc: cannot listen on {address}: in use, or not an address here")

    async def start(self) -> None:
        await self._server.start()
        await self._set_serving(True)

    async def drain(self, grace_s: float) -> None:
        """Says NOT_SERVING, ends the streams, and lets running calls finish."""
        await self._set_serving(False)
        self._predictor.watchers.close()
        await self._server.stop(grace_s)

    async def _set_serving(self, is_serving: bool) -> None:
        status = health._health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)


def to_event(message: pb.Event) -> Event | None:
    """None for a malformed event. An event from the future (a negative age) happened now."""
    ids = (message.tenant, message.session, message.turn)
    if max(map(len, ids)) > MAX_ID or not message.session:
        return None
    age_s = message.age_seconds
    if not math.isfinite(age_s) or age_s > TTL_S:
        return None
    kind = _kind(message)
    if kind is None or not (message.turn or isinstance(kind, SessionEnded)):
        return None
    return Event(SessionKey(message.tenant, message.session), message.turn, max(age_s, 0.0), kind)


def _kind(message: pb.Event) -> TurnStarted | TurnEnded | SessionEnded | None:
    match message.WhichOneof("kind"):
        case "turn_started":
            return TurnStarted()
        case "turn_ended":
            return _turn_ended(message.turn_ended)
        case "session_ended":
            return SessionEnded()
    return None


def _turn_ended(message: pb.TurnEnded) -> TurnEnded:
    """An outcome that this version does not know: a tool if there are calls, else a person.

    The engine hook has redacted the arguments already; what another sender forgot ends here.
    """
    calls = message.tool_calls[:MAX_TOOL_CALLS]
    known = tuple(
        ToolCall(call.name[:MAX_TOOL_NAME], redact(call.arguments[:MAX_RAW_CHARS]))
        for call in calls
        if call.name
    )
    unknown = Wait.TOOL if calls else Wait.HUMAN
    dropped = len(message.tool_calls) - len(known)
    return TurnEnded(_WAITS.get(message.outcome, unknown), known, dropped)


def _fill(message: pb.SessionForecast, forecast: SessionForecast) -> None:
    """message: where it is sent from. Protobuf copies by encoding and parsing again, so a finished
    message that is put into another costs several times what filling it there does.
    """
    message.tenant, message.session = forecast.key
    message.turn = forecast.turn
    message.elapsed_seconds = forecast.elapsed_s
    message.session_ended = forecast.has_ended
    message.outcome = _OUTCOMES[forecast.wait]
    if forecast.forecast is not None:
        message.forecast.ParseFromString(_encoded(forecast.forecast))


@lru_cache(maxsize=8_192)  # sessions that wait for the same share one forecast
def _encoded(forecast: Forecast) -> bytes:
    """A pb.Forecast."""
    return pb.Forecast(
        elapsed_seconds=forecast.elapsed_s,
        remaining_seconds=forecast.remaining_s,
        quantiles=[
            pb.Quantile(probability=probability, wait_seconds=wait_s)
            for probability, wait_s in forecast.quantiles
        ],
        source=_SOURCES[forecast.source],
        sample_count=forecast.sample_count,
        model_version=forecast.model_version,
    ).SerializeToString()


def _keys(queries: Iterable[pb.ReuseQuery]) -> list[SessionKey]:
    return [SessionKey(query.tenant, query.session) for query in queries]
