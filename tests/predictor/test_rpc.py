"""The contract over a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from cachewise_predictor.errors import ConfigError
from cachewise_predictor.model import Model
from cachewise_predictor.rpc import SERVICE, PredictorServicer, RpcServer
from cachewise_predictor.service import Predictor
from cachewise_proto import predictor_pb2 as pb
from cachewise_proto.predictor_pb2_grpc import PredictorServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from .conftest import KEY, Clock, interval, make_predictor, sample


@pytest.fixture
async def server(predictor: Predictor) -> AsyncIterator[RpcServer]:
    server = RpcServer(predictor, "127.0.0.1:0")
    await server.start()
    yield server
    await server.drain(0)


@pytest.fixture
async def channel(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return PredictorServiceStub(channel)


def event(turn: str = "t0", age: float = 0.0, session: str = "s1", **kind: Any) -> pb.Event:
    return pb.Event(tenant="acme", session=session, turn=turn, replica="r", age_seconds=age, **kind)


def turn_ended(*tools: str, outcome: int = pb.OUTCOME_TOOL) -> pb.TurnEnded:
    calls = [pb.ToolCall(id="x", name=name, arguments='{"token": "secret"}') for name in tools]
    return pb.TurnEnded(tool_calls=calls, outcome=outcome)  # type: ignore[arg-type]


def ended(*tools: str, **fields: Any) -> pb.Event:
    return event(turn_ended=turn_ended(*tools), **fields)


def started(**fields: Any) -> pb.Event:
    return event(turn_started=pb.TurnStarted(), **fields)


def report(*events: pb.Event) -> pb.ReportEventsRequest:
    return pb.ReportEventsRequest(events=events)


QUERY = pb.ReuseQuery(tenant=KEY.tenant, session=KEY.session)
ANNOUNCE = pb.WatchForecastsRequest(replica="r", sessions_added=[QUERY])


async def test_an_ended_turn_is_forecast_until_the_next_one_starts(
    stub: Any, predictor: Predictor, clock: Clock
) -> None:
    answer = await stub.ReportEvents(report(started(), ended("Bash", age=2.5)))
    assert (answer.accepted, answer.rejected) == (2, 0)
    clock.now += 4
    unknown = pb.ReuseQuery(tenant="acme", session="nobody")
    answer = await stub.ForecastReuse(pb.ForecastReuseRequest(queries=[unknown, QUERY]))
    nobody, forecast = answer.forecasts
    assert not nobody.HasField("forecast")
    assert (forecast.session, forecast.turn, forecast.elapsed_seconds) == ("s1", "t0", 6.5)
    assert forecast.forecast.source == pb.FORECAST_SOURCE_PRIOR
    assert forecast.forecast.model_version == "prior"
    assert list(forecast.forecast.elapsed_seconds) == sorted(forecast.forecast.elapsed_seconds)
    assert forecast.forecast.elapsed_seconds[0] == 0
    assert len(forecast.forecast.remaining_seconds) == 32
    assert [q.probability for q in forecast.forecast.quantiles] == [0.5, 0.9, 0.99]
    await stub.ReportEvents(report(started(turn="t1")))
    answer = await stub.ForecastReuse(pb.ForecastReuseRequest(queries=[QUERY]))
    assert not answer.forecasts[0].HasField("forecast")
    assert sample(predictor, "wait_seconds_sum") == 6.5
    assert sample(predictor, "tool_calls_total") == 1
    assert sample(predictor, "rpc_seconds_count", method="ForecastReuse") == 2


def made_anew(predictor: Predictor) -> pb.SessionForecast:
    """The answer for KEY, from a model that remembers nothing."""
    state, model = predictor.sessions.get(KEY), predictor.model
    assert state is not None and state.open is not None
    anew, opened = Model(model.rows, model.clusters, model.digest), state.open
    made = anew.forecast(KEY.tenant, opened.wait, opened.calls, state.recent)
    return pb.SessionForecast(
        tenant=KEY.tenant,
        session=KEY.session,
        turn=opened.turn,
        elapsed_seconds=predictor.clock() - opened.opened_at,
        outcome=pb.OUTCOME_TOOL,
        forecast=pb.Forecast(
            elapsed_seconds=made.elapsed_s,
            remaining_seconds=made.remaining_s,
            quantiles=[pb.Quantile(probability=p, wait_seconds=s) for p, s in made.quantiles],
            source=pb.ForecastSource.Value(f"FORECAST_SOURCE_{made.source.name}"),
            sample_count=made.sample_count,
            model_version=made.model_version,
        ),
    )


_steps = st.tuples(st.sampled_from(("Bash", "Read")), st.floats(0.1, 500.0), st.booleans())


@given(st.lists(_steps, min_size=1, max_size=6))
def test_an_answer_is_of_the_present_model_and_wait_whatever_was_asked_before(
    steps: list[tuple[str, float, bool]],
) -> None:
    """Each turn is a new interval, each wait another piece of the session's evidence."""
    clock = Clock()
    predictor = make_predictor(clock)
    servicer = PredictorServicer(predictor)
    nobody = pb.ReuseQuery(tenant="acme", session="nobody")
    queries = pb.ForecastReuseRequest(queries=[QUERY, nobody, QUERY])

    async def run() -> None:
        for number, (tool, wait_s, has_learned) in enumerate(steps):
            turn = f"t{number}"
            await servicer.ReportEvents(report(started(turn=turn), ended(tool, turn=turn)), None)
            await servicer.ForecastReuse(queries, None)
            clock.now += wait_s
            if has_learned:
                predictor.model = predictor.model.learn([interval(wait_s, tool)])
            answer = await servicer.ForecastReuse(queries, None)
            expected = made_anew(predictor)
            unknown = pb.SessionForecast(tenant="acme", session="nobody")
            assert list(answer.forecasts) == [expected, unknown, expected]

    asyncio.run(run())


@pytest.mark.parametrize(
    "malformed",
    [
        event(),
        started(session=""),
        started(turn=""),
        started(age=math.nan),
        started(age=math.inf),
        started(age=1e6),
        started(session="x" * 257),
    ],
)
async def test_a_malformed_event_is_rejected_and_the_others_are_taken(
    stub: Any, predictor: Predictor, malformed: pb.Event
) -> None:
    answer = await stub.ReportEvents(report(ended("Bash"), malformed))
    assert (answer.accepted, answer.rejected) == (1, 1)
    assert sample(predictor, "rejected_events_total") == 1
    assert sample(predictor, "open_intervals") == 1


async def test_secrets_in_arguments_end_at_the_door(stub: Any, predictor: Predictor) -> None:
    long = '{"command": "' + "x" * 1_000_000 + '"}'
    planted = ['{"api_key": "hunter2-hunter2"}', "curl https://me:hunter2@host/", long]
    calls = [pb.ToolCall(name="Bash", arguments=text) for text in planted]
    turn = pb.TurnEnded(tool_calls=calls, outcome=pb.OUTCOME_TOOL)
    await stub.ReportEvents(report(event(turn_ended=turn)))
    state = predictor.sessions.get(KEY)
    assert state is not None and state.open is not None
    kept = [call.arguments for call in state.open.calls]
    assert "hunter2" not in "".join(kept)
    assert max(map(len, kept)) <= 400


async def test_an_event_from_the_future_happened_now(stub: Any, predictor: Predictor) -> None:
    await stub.ReportEvents(report(ended("Bash", age=-50.0)))
    assert predictor.forecast(KEY).elapsed_s == 0


async def test_a_batch_sent_again_is_accepted_and_changes_nothing(
    stub: Any, predictor: Predictor
) -> None:
    batch = report(ended("Bash", age=3.0), started(turn="t1", age=1.0), ended("Read", turn="t1"))
    for _ in range(3):
        answer = await stub.ReportEvents(batch)
        assert (answer.accepted, answer.rejected) == (3, 0)
    assert sample(predictor, "intervals_total", end="finished") == 1
    assert sample(predictor, "duplicate_events_total") == 6
    assert sample(predictor, "tool_calls_total") == 2


@pytest.mark.parametrize(
    ("tools", "outcome", "least_median_s", "most_median_s"),
    [
        (("Bash",), pb.OUTCOME_TOOL, 0.3, 0.6),
        (("Bash", "Task"), pb.OUTCOME_TOOL, 15, 30),
        ((), pb.OUTCOME_HUMAN, 60, 120),
        ((), pb.OUTCOME_ABORTED, 60, 120),
        ((), pb.OUTCOME_LENGTH, 0.2, 0.5),
        (("Bash",), pb.OUTCOME_UNSPECIFIED, 0.3, 0.6),
        ((), 99, 60, 120),
        (("",) * 3, pb.OUTCOME_TOOL, 0.2, 0.5),
        (("x" * 10_000,) * 1_000, pb.OUTCOME_TOOL, 0.3, 1_000),
    ],
)
async def test_every_outcome_has_a_forecast(
    stub: Any, tools: tuple[str, ...], outcome: int, least_median_s: float, most_median_s: float
) -> None:
    if len(tools) > 100:
        tools = tools[:100]
    await stub.ReportEvents(report(event(turn_ended=turn_ended(*tools, outcome=outcome))))
    answer = await stub.ForecastReuse(pb.ForecastReuseRequest(queries=[QUERY]))
    median_s = answer.forecasts[0].forecast.quantiles[0].wait_seconds
    assert least_median_s < median_s < most_median_s


@pytest.mark.parametrize(
    ("tools", "outcome", "told"),
    [
        (("Bash",), pb.OUTCOME_TOOL, pb.OUTCOME_TOOL),
        ((), pb.OUTCOME_HUMAN, pb.OUTCOME_HUMAN),
        ((), pb.OUTCOME_LENGTH, pb.OUTCOME_LENGTH),
        ((), pb.OUTCOME_UNSPECIFIED, pb.OUTCOME_HUMAN),
    ],
)
async def test_a_forecast_says_what_the_session_waits_for(
    stub: Any, tools: tuple[str, ...], outcome: int, told: int
) -> None:
    queries = pb.ForecastReuseRequest(queries=[QUERY])
    await stub.ReportEvents(report(event(turn_ended=turn_ended(*tools, outcome=outcome))))
    assert (await stub.ForecastReuse(queries)).forecasts[0].outcome == told
    await stub.ReportEvents(report(started(turn="t1")))
    assert (await stub.ForecastReuse(queries)).forecasts[0].outcome == pb.OUTCOME_UNSPECIFIED


async def test_a_replica_hears_of_its_sessions_and_only_of_them(stub: Any) -> None:
    stream = stub.WatchForecasts()
    await stream.write(ANNOUNCE)
    await asyncio.sleep(0.1)
    await stub.ReportEvents(report(ended("Bash", session="other"), ended("Bash")))
    message = await stream.read()
    assert [(f.session, f.turn) for f in message.forecasts] == [("s1", "t0")]
    assert message.forecasts[0].HasField("forecast")
    await stub.ReportEvents(report(event(turn="", session_ended=pb.SessionEnded())))
    message = await stream.read()
    assert [(f.session, f.session_ended) for f in message.forecasts] == [("s1", True)]
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_an_open_interval_is_forecast_at_once_when_a_replica_announces_it(
    stub: Any, predictor: Predictor, clock: Clock
) -> None:
    await stub.ReportEvents(report(ended("Bash")))
    clock.now += 7
    stream = stub.WatchForecasts()
    await stream.write(ANNOUNCE)
    (forecast,) = (await stream.read()).forecasts
    assert forecast.elapsed_seconds == 7
    assert sample(predictor, "watchers") == 1
    assert sample(predictor, "forecasts_sent_total") == 1


async def test_a_withdrawn_session_is_silent(stub: Any) -> None:
    stream = stub.WatchForecasts()
    await stream.write(ANNOUNCE)
    other = pb.ReuseQuery(tenant="acme", session="s2")
    await stream.write(
        pb.WatchForecastsRequest(replica="r", sessions_added=[other], sessions_removed=[QUERY])
    )
    await asyncio.sleep(0.1)
    await stub.ReportEvents(report(ended("Bash"), ended("Bash", session="s2")))
    assert [f.session for f in (await stream.read()).forecasts] == ["s2"]


async def test_a_replica_sees_that_it_is_connected_before_there_is_news(stub: Any) -> None:
    stream = stub.WatchForecasts()
    async with asyncio.timeout(5):
        await stream.initial_metadata()
    stream.cancel()


async def test_a_replica_that_vanishes_is_forgotten(stub: Any, predictor: Predictor) -> None:
    stream = stub.WatchForecasts()
    await stream.write(ANNOUNCE)
    await stream.initial_metadata()
    assert sample(predictor, "watchers") == 1
    stream.cancel()
    async with asyncio.timeout(5):
        while sample(predictor, "watchers") != 0:
            await asyncio.sleep(0.01)
    assert len(predictor.watchers) == 0


async def test_too_many_sessions_end_the_stream_with_a_reason(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachewise_predictor.watchers.MAX_SESSIONS_PER_REPLICA", 0)
    stream = stub.WatchForecasts()
    await stream.write(ANNOUNCE)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "remove some first" in (caught.value.details() or "")


async def test_a_bug_is_an_internal_error_and_the_server_goes_on(
    stub: Any, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(predictor, "report", lambda events: 1 / 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReportEvents(report(ended("Bash")))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert (await stub.ReportEvents(report(ended("Bash")))).accepted == 1


async def test_health_says_serving_and_then_not_serving_while_draining(
    server: RpcServer, channel: grpc.aio.Channel, stub: Any
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    stream = stub.WatchForecasts()
    await stream.initial_metadata()
    drain = asyncio.create_task(server.drain(2))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await stream.read() is grpc.aio.EOF
    watch.cancel()
    await drain


async def test_reflection_lists_the_service(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    stream = stub.ServerReflectionInfo()
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await stream.read()
    names = [service.name for service in answer.list_services_response.service]
    assert SERVICE in names
    await stream.done_writing()


async def test_a_client_that_pings_often_on_an_idle_connection_is_not_sent_away(
    server: RpcServer,
) -> None:
    options = [
        ("grpc.keepalive_time_ms", 200),
        ("grpc.http2.min_time_between_pings_ms", 200),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    address = f"127.0.0.1:{server.port}"
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stream = PredictorServiceStub(channel).WatchForecasts()
        await stream.initial_metadata()
        await asyncio.sleep(3)
        assert not stream.done()
        stream.cancel()


async def test_a_port_in_use_is_named(server: RpcServer, predictor: Predictor) -> None:
    with pytest.raises(ConfigError, match=f"--grpc.*:{server.port}"):
        RpcServer(predictor, f"127.0.0.1:{server.port}")


async def test_a_flood_of_sessions_is_taken_and_bounded(stub: Any, predictor: Predictor) -> None:
    predictor.sessions._max_sessions = 2_000
    start = time.perf_counter()
    for base in range(0, 20_000, 1_000):
        events = [ended("Bash", session=f"s{n}") for n in range(base, base + 1_000)]
        await stub.ReportEvents(report(*events))
    assert sample(predictor, "open_intervals") == len(predictor.sessions) == 2_000
    assert (time.perf_counter() - start) / 20_000 < 1e-3
