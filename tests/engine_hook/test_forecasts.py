"""The forecast link against a real gRPC server on loopback that can be killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from cachewise_engine_hook.forecasts import ForecastLink, _update_from
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto import predictor_pb2_grpc as rpc


class Predictor(rpc.PredictorServiceServicer):
    """Records announcements and sends what it is told to."""

    def __init__(self, port: int = 0) -> None:
        self.held: set[str] = set()
        self.streams = 0
        self._out: SimpleQueue[pb.WatchForecastsResponse | None] = SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(4))
        rpc.add_PredictorServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def WatchForecasts(  # noqa: N802 - gRPC's name
        self, requests: Iterator[pb.WatchForecastsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WatchForecastsResponse]:
        self.streams += 1
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while (response := self._out.get()) is not None:
            yield response

    def _listen(self, requests: Iterator[pb.WatchForecastsRequest]) -> None:
        try:
            for request in requests:
                self.held |= {q.session for q in request.sessions_added}
                self.held -= {q.session for q in request.sessions_removed}
        except grpc.RpcError:
            pass
        except Exception:  # the stream was killed under us
            pass

    def send(self, *forecasts: pb.SessionForecast) -> None:
        self._out.put(pb.WatchForecastsResponse(forecasts=forecasts))

    def kill(self) -> None:
        self._server.stop(grace=None)
        self._out.put(None)
        self._server.wait_for_termination(2)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come to hold"
        time.sleep(0.01)


def message(
    session: str, elapsed: float = 0.5, curve: tuple[float, ...] = (3.0,)
) -> pb.SessionForecast:
    forecast = pb.Forecast(
        elapsed_seconds=list(range(len(curve))),
        remaining_seconds=curve,
        source=pb.FORECAST_SOURCE_TOOL,
        sample_count=9,
        model_version="m1",
    )
    return pb.SessionForecast(session=session, elapsed_seconds=elapsed, forecast=forecast)


@pytest.fixture
def predictor() -> Iterator[Predictor]:
    predictor = Predictor()
    yield predictor
    predictor.kill()


@pytest.fixture
def link(predictor: Predictor) -> Iterator[ForecastLink]:
    link = ForecastLink(f"127.0.0.1:{predictor.port}", "engine-1", "default")
    yield link
    link.stop()


def test_announcements_go_out_and_forecasts_come_in(
    predictor: Predictor, link: ForecastLink
) -> None:
    link.announce("before the stream")
    link.start()
    eventually(lambda: predictor.held == {"before the stream"})
    link.announce("after")
    link.withdraw("before the stream")
    eventually(lambda: predictor.held == {"after"})
    before = time.monotonic()
    predictor.send(message("after", elapsed=0.5))
    updates: list = []
    eventually(lambda: bool(updates.extend(link.take()) or updates))
    (update,) = updates
    assert update.session == "after" and not update.ended
    assert before - 0.5 <= update.opened_at <= time.monotonic() - 0.5
    assert update.forecast.remaining(0) == 3.0
    assert (update.forecast.source, update.forecast.sample_count) == ("tool", 9)


def test_after_a_kill_the_link_reconnects_and_announces_everything_again() -> None:
    first = Predictor()
    link = ForecastLink(f"127.0.0.1:{first.port}", "engine-1", "default")
    link.announce("a")
    link.start()
    eventually(lambda: first.held == {"a"})
    first.kill()
    eventually(lambda: not link.connected)
    link.announce("b")
    second = Predictor(first.port)
    eventually(lambda: second.held == {"a", "b"})
    assert link.connected
    link.stop()
    second.kill()


def test_malformed_forecasts_are_counted_and_the_others_taken(
    predictor: Predictor, link: ForecastLink
) -> None:
    link.start()
    eventually(lambda: link.connected and predictor.streams == 1)
    predictor.send(
        message(""),
        message("a", elapsed=-1),
        message("a", elapsed=float("nan")),
        message("a", curve=()),
        message("a", curve=(float("inf"),)),
        message("a", curve=(1.0,) * 1_001),
        message("good"),
        pb.SessionForecast(session="gone", session_ended=True),
    )
    updates: list = []
    eventually(lambda: len(updates.extend(link.take()) or updates) == 2)
    assert [u.session for u in updates] == ["good", "gone"]
    assert updates[1].ended and updates[1].forecast is None
    assert link.malformed == 6 and link.received == {"tool": 1}


@pytest.mark.parametrize(
    ("outcome", "is_human"),
    [(pb.OUTCOME_HUMAN, True), (pb.OUTCOME_TOOL, False), (pb.OUTCOME_UNSPECIFIED, False)],
)
def test_a_forecast_says_whether_a_person_is_waited_for(outcome: Any, is_human: bool) -> None:
    said = message("a")
    said.outcome = outcome
    assert _update_from(said, 0.0).waits_for_human is is_human


def test_without_a_predictor_the_link_waits_quietly_and_stops_at_once() -> None:
    link = ForecastLink("127.0.0.1:9", "engine-1", "default")
    link.start()
    for i in range(1000):
        link.announce(f"s{i}")
    assert link.take() == [] and not link.connected
    started = time.monotonic()
    link.stop(timeout_s=8)
    assert time.monotonic() - started < 8
