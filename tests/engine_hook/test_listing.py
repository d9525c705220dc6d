"""The scheduler's port, over HTTP."""

from __future__ import annotations

import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest
from cachewise_engine_hook.claims import Ask, ClaimBook
from cachewise_engine_hook.decisions import DecisionTrace
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.listing import Listing, claims_listing, decisions_listing, serve
from cachewise_engine_hook.metrics import EngineCollector
from cachewise_engine_hook.readings import Readings

from tests.engine_hook.test_metrics import make_hook


def free_port(host: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as free:
        return int(free.getsockname()[1])


def opened(listings: Mapping[str, Listing] | None = None, host: str = "127.0.0.1") -> str:
    port = free_port(host)
    serve(host, port, "key", EngineCollector(Readings(make_hook())), listings or {})
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def get(url: str) -> object:
    with urllib.request.urlopen(url) as response:
        assert response.headers["Content-Type"] == "application/json"
        return json.load(response)


def promise(book: ClaimBook, session: str, now: float) -> None:
    book.grant(Ask(session, 60.0, 1, 1, 1, 16), 0, 0, now)


def test_the_metrics_are_served_over_http() -> None:
    with urllib.request.urlopen(f"{opened()}/metrics") as response:
        assert b"cachewise_evicted_blocks_total" in response.read()


def test_a_port_in_use_is_reported_and_does_not_stop_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with caplog.at_level(logging.ERROR, "vllm.cachewise.listing"):
            serve("127.0.0.1", port, "", EngineCollector(Readings(make_hook())), {})
    assert f"metrics_port {port} of 127.0.0.1 cannot be opened" in caplog.text


def test_a_host_that_is_none_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "vllm.cachewise.listing"):
        serve("no.such.host.invalid", 1, "", EngineCollector(Readings(make_hook())), {})
    assert "no.such.host.invalid cannot be opened" in caplog.text


def test_an_address_of_ipv6_will_do() -> None:
    try:
        url = opened(host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with urllib.request.urlopen(f"{url}/metrics") as response:
        assert response.status == 200


def test_another_path_is_not_found_and_the_answer_names_the_paths() -> None:
    url = opened({"/claims": lambda is_wanted: [], "/decisions": lambda is_wanted: []})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/claim")
    with refused.value as answer:
        assert answer.code == 404
        assert json.load(answer) == {"paths": ["/metrics", "/claims", "/decisions"]}


def test_nothing_can_be_posted() -> None:
    url = opened({"/claims": lambda is_wanted: []})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/claims", data=b"{}")
    with refused.value as answer:
        assert answer.code == 405


def test_claims_are_listed_the_newest_last_with_their_ages() -> None:
    claims = make_hook().claims
    claims.book.limits = type(claims.book.limits)(100, 100, 30.0)
    promise(claims.book, "a", 10.0)
    promise(claims.book, "b", 15.0)
    answer = get(f"{opened({'/claims': claims_listing(claims, lambda: 20.0)})}/claims")
    assert answer["live"] == [
        {"session": "a", "blocks": 1, "tokens": 16, "age_s": 10.0, "ends_in_s": 20.0},
        {"session": "b", "blocks": 1, "tokens": 16, "age_s": 5.0, "ends_in_s": 25.0},
    ]
    assert [e["session"] for e in answer["events"]] == ["a", "b"]
    assert answer["events"][0] == {
        "ago_s": 10.0,
        "session": "a",
        "outcome": "clipped",
        "reason": "30 s of 60",
        "blocks": 1,
        "age_s": 0.0,
    }


def test_one_session_is_asked_for_by_its_name_or_by_its_key() -> None:
    claims, key = make_hook().claims, hash_session("claude 1", "key")
    for session in (key, "other"):
        promise(claims.book, session, 0.0)
    url = opened({"/claims": claims_listing(claims, lambda: 0.0)})
    for name in ("claude%201", key):
        answer = get(f"{url}/claims?session={name}")
        assert {e["session"] for e in answer["events"]} == {key}
    assert get(f"{url}/claims?session=nobody")["events"] == []
    assert len(get(f"{url}/claims")["events"]) == 2


def test_decisions_are_listed_and_a_wait_without_end_is_null() -> None:
    trace = DecisionTrace(1.0)
    trace.note(1.0, "a", "evicted", blocks=3, order="forecast", wanted_in_s=float("inf"))
    trace.note(2.0, "b", "left")
    url = opened({"/decisions": decisions_listing(trace, lambda: 5.0)})
    evicted = {
        "ago_s": 4.0,
        "session": "a",
        "what": "evicted",
        "details": {"blocks": 3, "order": "forecast", "wanted_in_s": None},
    }
    left = {"ago_s": 3.0, "session": "b", "what": "left", "details": {}}
    assert get(f"{url}/decisions") == {"is_on": True, "decisions": [evicted, left]}
    assert get(f"{url}/decisions?session=b")["decisions"] == [left]


def test_a_trace_that_is_off_says_so() -> None:
    url = opened({"/decisions": decisions_listing(None, lambda: 0.0)})
    assert get(f"{url}/decisions") == {"is_on": False, "decisions": []}


def test_what_is_read_while_the_scheduler_writes_is_whole() -> None:
    """Readers and a writer at full speed: nobody sees a container change under it."""
    claims, trace = make_hook().claims, DecisionTrace(1.0, size=100)
    claims.book.limits = type(claims.book.limits)(10**9, 10**9, 30.0)
    listings = [claims_listing(claims, lambda: 0.0), decisions_listing(trace, lambda: 0.0)]
    errors: list[Exception] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                for listing in listings:
                    listing(lambda session: session.startswith("s"))
            except Exception as error:
                errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(20_000):
        promise(claims.book, f"s{i}", 0.0)
        trace.note(0.0, f"s{i}", "parked", room_blocks=i)
        if i >= 50:
            claims.book.admitted(f"s{i - 50}", 16, True, 1.0)
    is_over.set()
    for reader in readers:
        reader.join()
    assert not errors
