"""10^6 session ids, or ids of a megabyte: memory is bounded, and real sessions keep their state.

Case 9 of the public faults: routers and engines kept a record of every id that a client made up.
"""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import grpc
import pytest
from cachewise_engine_hook import claims, forecasts
from cachewise_engine_hook.forecasts import ForecastLink
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.readings import Readings
from cachewise_engine_hook.reporter import GrpcReporter, TurnStarted
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate, SessionTable
from cachewise_proto import predictor_pb2_grpc as rpc
from prometheus_client import CollectorRegistry
from vllm.v1.request import RequestStatus

from .middleware_stack import CHAT, check_turn, post
from .test_forecasts import eventually
from .vllm_scheduler import make_request, make_scheduler, run

IDS = 1_000_000


@pytest.mark.timeout(600)
def test_the_session_table_is_bounded_and_real_sessions_stay_in_it() -> None:
    """Real ones are away for 30,000 made-up ids, which alone would fill the table anew."""
    table = SessionTable(20_000)
    real = [f"real{i}" for i in range(30)]
    for key in real:
        come_and_go(table, key, 0.0)
        come_and_go(table, key, 1.0)
    kept = {key: table.get(key) for key in real}
    for now in range(2, IDS):
        if now % 1000 == 0:
            come_and_go(table, real[now // 1000 % 30], now)
        come_and_go(table, f"flood{now}", now)
    assert len(table) == 20_000 and len(table._seen_once) <= 20_000
    for key in real:
        assert table.get(key) is kept[key]
    assert len(table.forgotten) == IDS - 2 + len(real) - len(table)


def come_and_go(table: SessionTable, key: str, now: float) -> None:
    table.request_arrived(key, now)
    table.request_left(key, now + 0.5)
    table.apply(ForecastUpdate(key, now, Forecast((0.0,), (60.0,))))


def test_sessions_that_came_back_once_do_not_shut_new_ones_out() -> None:
    table = SessionTable(100)
    for now in range(1000):
        come_and_go(table, f"old{now // 2}", now)
    for now in range(1000, 1040):
        come_and_go(table, f"new{now % 20}", now)
    assert all(f"new{i}" in table for i in range(20))


@pytest.mark.timeout(600)
def test_a_scheduler_remembers_no_more_after_twice_as_many_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tables of the engine's side at once, by the memory that they take."""
    monkeypatch.setattr(claims, "LOG_SIZE", 50)  # full from the start
    scheduler = make_scheduler(
        CacheWiseScheduler, num_blocks=60, settings={"max_sessions": 100, "claim_ttl_s": 600.0}
    )
    flood(scheduler, 0, 700)
    tracemalloc.start()
    try:
        sizes = []
        for start in (10_000, 20_000, 30_000):
            flood(scheduler, start, 700)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    a_hash = 81  # bytes; whoever keeps an id keeps at least that
    assert (sizes[2] - sizes[1]) / 700 < a_hash / 2, sizes
    assert len(scheduler._hook.sessions) == 100 and len(scheduler._hook.requests) == 0


def flood(scheduler: Any, start: int, count: int) -> None:
    """Most clients are gone before they are served; every tenth is served."""
    for number in range(start, start + count):
        request = make_request(f"r{number}", [number % 250] * 40, session=f"made up {number}")
        scheduler.add_request(request)
        if number % 10 == 0:
            run(scheduler)
        else:
            scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)


class Deaf(rpc.PredictorServiceServicer):
    """A predictor that opens the stream and never reads it."""

    def __init__(self) -> None:
        self.streams, self.released = 0, Event()

    def WatchForecasts(self, requests: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.streams += 1
        self.released.wait(60)
        return iter(())


def test_a_predictor_that_does_not_read_leaves_nothing_piled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecasts, "_MOST_CHANGES", 2_000)
    deaf, server = Deaf(), grpc.server(ThreadPoolExecutor(4))
    rpc.add_PredictorServiceServicer_to_server(deaf, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = ForecastLink(f"127.0.0.1:{port}", "engine", "default")
    link.start()
    try:
        eventually(lambda: deaf.streams > 0)
        for number in range(40_000):
            link.announce(f"s{number}")
            link.withdraw(f"s{number - 100}")
            if (changes := link._changes) is not None:
                assert changes.qsize() <= 2_002
        assert len(link._held) == 100
        eventually(lambda: deaf.streams > 1)
    finally:
        deaf.released.set()
        link.stop()
        server.stop(grace=None)


@pytest.mark.timeout(600)
def test_events_of_a_million_ids_take_no_more_room_than_the_queue() -> None:
    metrics = MiddlewareMetrics(registry := CollectorRegistry())
    reporter = GrpcReporter("127.0.0.1:1", "default", "r", 10_000, metrics)
    for number in range(IDS):
        reporter.report(TurnStarted(f"{number:032x}", "0" * 16, float(number)))
    dropped = registry.get_sample_value("cachewise_events_dropped_total")
    assert len(reporter._queue) <= 10_000
    assert IDS - 11_000 <= dropped <= IDS
    reporter.close(0.1)


@pytest.mark.parametrize("where", ["body", "metadata"])
def test_an_id_of_a_megabyte_is_one_small_hash_everywhere(
    stack: Any, predictor: Any, where: str
) -> None:
    huge = "x" * 1_000_000
    body = {"session_id": huge} if where == "body" else {"metadata": {"user_id": huge}}
    assert post(stack, CHAT, None if where == "body" else "s", json=body).status_code == 200
    check_turn(predictor.wait_for(2), huge if where == "body" else "s", "TOOL")
    (event, *_) = predictor.events
    assert len(event.session) == 32


def test_in_the_engine_too() -> None:
    scheduler, huge = make_scheduler(CacheWiseScheduler), "x" * 1_000_000
    scheduler.add_request(make_request("r", [1] * 40, session=huge))
    run(scheduler)
    assert [s.key for s in Readings(scheduler._hook).session_list()] == [hash_session(huge, "")]
