"""reporter.py: events reach the predictor, and nothing waits for it."""

import socket
import threading
import time

import pytest
from cachewise_engine_hook.middleware_metrics import MiddlewareMetrics
from cachewise_engine_hook.reporter import GrpcReporter, NullReporter, TurnEnded, TurnStarted
from cachewise_engine_hook.tool_calls import Outcome, ToolCall
from cachewise_proto import predictor_pb2 as pb
from prometheus_client import CollectorRegistry

from .recording_predictor import RecordingPredictor, serve


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def make_reporter(registry):
    """Reporters with one registry, closed in the end."""
    made = []

    def make(address, queue_size=1000):
        reporter = GrpcReporter(address, "t", "r", queue_size, MiddlewareMetrics(registry))
        made.append(reporter)
        return reporter

    yield make
    for reporter in made:
        reporter.close(0.0)


def started(turn):
    return TurnStarted("s", str(turn), time.monotonic())


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_an_event_arrives_with_all_its_fields(make_reporter):
    predictor = RecordingPredictor()
    with serve(predictor) as address:
        reporter = make_reporter(address)
        call = ToolCall("c", "Bash", '{"a": "größe"}')
        reporter.report(TurnStarted("s", "1", time.monotonic() - 3))
        reporter.report(TurnEnded("s", "1", time.monotonic() + 9, (call,), Outcome.TOOL))
        first, second = predictor.wait_for(2)
    assert (first.tenant, first.replica, first.session, first.turn) == ("t", "r", "s", "1")
    assert first.WhichOneof("kind") == "turn_started"
    assert 3 <= first.age_seconds < 5
    assert second.age_seconds == 0
    assert second.turn_ended.outcome == pb.OUTCOME_TOOL
    assert list(second.turn_ended.tool_calls) == [
        pb.ToolCall(id="c", name="Bash", arguments='{"a": "größe"}')
    ]


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_its_value_on_the_wire(make_reporter, outcome):
    predictor = RecordingPredictor()
    with serve(predictor) as address:
        make_reporter(address).report(TurnEnded("s", "1", time.monotonic(), (), outcome))
        (event,) = predictor.wait_for(1)
    assert pb.Outcome.Name(event.turn_ended.outcome) == f"OUTCOME_{outcome.name}"


def test_a_failed_batch_is_sent_again_in_order_with_its_age_at_that_time(make_reporter, registry):
    predictor = RecordingPredictor()
    predictor.failures_left = 2
    with serve(predictor) as address:
        reporter = make_reporter(address)
        for turn in range(5):
            reporter.report(started(turn))
        events = predictor.wait_for(5)
    assert [event.turn for event in events] == ["0", "1", "2", "3", "4"]
    assert events[0].age_seconds > 0.05
    assert registry.get_sample_value("cachewise_events_failed_total") >= 2
    assert registry.get_sample_value("cachewise_events_dropped_total") == 0
    assert registry.get_sample_value("cachewise_events_total", {"kind": "turn_started"}) == 5


def test_without_a_predictor_nothing_waits_and_the_oldest_events_are_dropped(
    make_reporter, registry
):
    reporter = make_reporter(free_address(), queue_size=100)
    longest = 0.0
    for turn in range(2000):
        before = time.perf_counter()
        reporter.report(started(turn))
        longest = max(longest, time.perf_counter() - before)
    assert longest < 0.5
    reporter.close(2.0)
    # Closing has dropped the rest.
    assert registry.get_sample_value("cachewise_events_dropped_total") == 2000


def test_the_newest_events_survive_an_outage_and_arrive_after_it(make_reporter):
    address = free_address()
    reporter = make_reporter(address, queue_size=100)
    for turn in range(300):
        reporter.report(started(turn))
    time.sleep(0.5)
    predictor = RecordingPredictor()
    with serve(predictor, address):
        events = predictor.wait_for(100)
    assert [event.turn for event in events] == [str(turn) for turn in range(200, 300)]


def test_a_predictor_that_is_restarted_gets_the_events_of_the_meantime(make_reporter):
    first, second = RecordingPredictor(), RecordingPredictor()
    with serve(first) as address:
        reporter = make_reporter(address)
        reporter.report(started(1))
        first.wait_for(1)
    reporter.report(started(2))
    time.sleep(0.3)
    with serve(second, address):
        reporter.report(started(3))
        events = second.wait_for(2)
    assert [event.turn for event in events] == ["2", "3"]


def test_batches_are_bounded(make_reporter):
    predictor = RecordingPredictor()
    predictor.failures_left = 1
    calls = tuple(ToolCall("i" * 256, "n" * 256, "日" * 400) for _ in range(64))
    with serve(predictor) as address:
        reporter = make_reporter(address)
        for turn in range(600):
            reporter.report(started(turn))
        for turn in range(40):
            reporter.report(TurnEnded("s", str(turn), time.monotonic(), calls, Outcome.TOOL))
        predictor.wait_for(640)
    assert max(predictor.batches) <= 256


def test_close_sends_what_is_queued(make_reporter):
    predictor = RecordingPredictor()
    with serve(predictor) as address:
        reporter = make_reporter(address)
        for turn in range(1000):
            reporter.report(started(turn))
        reporter.close(5.0)
        assert len(predictor.events) == 1000


def test_close_takes_no_longer_than_its_timeout(make_reporter):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reporter = make_reporter(f"127.0.0.1:{silent.getsockname()[1]}")
        reporter.report(started(1))
        before = time.monotonic()
        reporter.close(0.5)
        assert time.monotonic() - before < 1.5


def test_the_thread_has_a_name_starts_with_the_first_event_and_ends_with_close(make_reporter):
    def threads():
        return [t for t in threading.enumerate() if t.name == "cachewise-reporter"]

    with serve(RecordingPredictor()) as address:
        others = len(threads())
        reporter = make_reporter(address)
        assert len(threads()) == others
        reporter.report(started(1))
        assert len(threads()) == others + 1
        assert all(thread.daemon for thread in threads())
        reporter.close(5.0)
        assert len(threads()) == others


def test_the_null_reporter_takes_everything():
    reporter = NullReporter()
    reporter.report(started(1))
    reporter.close(1.0)
