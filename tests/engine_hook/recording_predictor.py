"""A real gRPC server of the contract, which keeps the events that it is sent."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto import predictor_pb2_grpc


class RecordingPredictor(predictor_pb2_grpc.PredictorServiceServicer):
    def __init__(self):
        self.events: list[pb.Event] = []
        self.batches: list[int] = []
        self.failures_left = 0

    def ReportEvents(self, request, context):
        self.batches.append(len(request.events))
        if self.failures_left:
            self.failures_left -= 1
            context.abort(grpc.StatusCode.INTERNAL, "told to fail")
        self.events.extend(request.events)
        return pb.ReportEventsResponse(accepted=len(request.events))

    def wait_for(self, count, timeout_s=10.0):
        """The events, once there are so many."""
        deadline = time.monotonic() + timeout_s
        while len(self.events) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.events) >= count, self.events
        return self.events


@contextmanager
def serve(predictor, address="127.0.0.1:0"):
    """Serves it and gives its address; the server is gone afterwards, its connections cut."""
    server = grpc.server(ThreadPoolExecutor(4))
    predictor_pb2_grpc.add_PredictorServiceServicer_to_server(predictor, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
