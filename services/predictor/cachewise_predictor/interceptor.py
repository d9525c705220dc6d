"""What every RPC of ours goes through: our errors become gRPC statuses, its time is measured."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from .errors import CacheWiseError
from .metrics import Metrics

_log = logging.getLogger(__name__)


class ErrorsAndTimes(grpc.aio.ServerInterceptor):
    """service: the full name of the service; the others (health, reflection) pass untouched.

    A stream's time is not observed: it lasts as long as its replica.
    """

    def __init__(self, service: str, metrics: Metrics) -> None:
        self._prefix, self._metrics = f"/{service}/", metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        wrap, make = (
            (self._stream, grpc.stream_stream_rpc_method_handler)
            if handler.response_streaming
            else (self._unary, grpc.unary_unary_rpc_method_handler)
        )
        return make(
            wrap(handler, handler_call_details.method.removeprefix(self._prefix)),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _unary(self, handler: Any, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            start = time.perf_counter()
            try:
                return await handler.unary_unary(request, context)
            except CacheWiseError as error:
                await context.abort(error.status, str(error))
            except Exception:
                _log.exception("%s failed", method)
                await context.abort(
                    grpc.StatusCode.INTERNAL, "internal error; see the server's log"
                )
            finally:
                self._metrics.rpc_seconds.labels(method).observe(time.perf_counter() - start)

        return call

    def _stream(self, handler: Any, method: str) -> Callable[..., AsyncIterator[Any]]:
        async def call(
            requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[Any]:
            try:
                async for response in handler.stream_stream(requests, context):
                    yield response
            except CacheWiseError as error:
                await context.abort(error.status, str(error))

        return call
