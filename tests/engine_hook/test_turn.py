"""middleware.py and turn.py behind a real server: each turn is reported to the predictor."""

from __future__ import annotations

import asyncio
import gzip
import json
import time

import httpx
import pytest
from cachewise_engine_hook.identity import hash_session

from .middleware_stack import CALLS, CHAT, MESSAGES, check_turn, post
from .responses import anthropic_body, anthropic_stream, openai_body, openai_stream


@pytest.mark.parametrize("query", ["", "?stream=all"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_turn_with_tool_calls_is_reported(stack, predictor, path, query):
    response = post(stack, path + query, json={"messages": []})
    expected = {
        (CHAT, ""): openai_body,
        (CHAT, "?stream=all"): openai_stream,
        (MESSAGES, ""): anthropic_body,
        (MESSAGES, "?stream=all"): anthropic_stream,
    }[path, query](CALLS)
    assert response.content == expected
    check_turn(predictor.wait_for(2), "s", "TOOL")
    assert stack.seen.headers == [["s"]]
    assert stack.count("tool_calls") == 2
    assert stack.count("turns", outcome="tool") == 1
    assert stack.count("events", kind="turn_ended") == 1


def test_turns_of_a_session_follow_each_other_in_order(stack, predictor):
    for _ in range(50):
        post(stack, CHAT + "?stream=all", json={})
    events = predictor.wait_for(100)
    assert [e.WhichOneof("kind") for e in events] == ["turn_started", "turn_ended"] * 50
    assert len({e.turn for e in events}) == 50


def test_the_session_reaches_the_application_in_the_header(stack, predictor):
    uuid = "0b5e9c1a-2f3d-4c5b-8a7e-1234567890ab"
    body = {"metadata": {"user_id": f"user_x_session_{uuid}"}}
    post(stack, MESSAGES, None, json=body, headers={"x-claude-code-agent-id": "a1"})
    post(stack, MESSAGES, None, json={"session_id": "b"})
    post(stack, CHAT, "h", json={"session_id": "b"})
    post(stack, CHAT, None, json={})
    assert stack.seen.headers == [[f"{uuid}/a1"], ["b"], ["b"], []]
    names = [hash_session(name, "k") for name in (f"{uuid}/a1", "b", "b")]
    assert [event.session for event in predictor.wait_for(6)[::2]] == names
    assert stack.count("anonymous_requests") == 1


def test_other_paths_and_methods_pass_untouched(stack, predictor):
    assert post(stack, "/other", json={}).content == anthropic_body(CALLS)
    assert stack.client.get(CHAT, headers={"x-session-id": "s"}).status_code == 405
    assert post(stack, "/nowhere", json={}).status_code == 404
    time.sleep(0.2)
    assert not predictor.events


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"session_id": "\xff"}',
        b'{"a":' * 100_000,
        gzip.compress(b'{"session_id": "s"}'),
        b'{"a": "' + b"x" * 10_000_000,
    ],
    ids=["empty", "open", "list", "utf8", "deep", "gzip", "10MB"],
)
def test_a_malformed_request_body_is_passed_on_and_counted(stack, predictor, body):
    response = post(stack, CHAT, content=body)
    assert response.status_code == 200
    assert stack.seen.bodies == [body]
    assert stack.count("unparsed_bodies", where="request") == 1
    check_turn(predictor.wait_for(2), "s", "TOOL")
    assert stack.count("middleware_failures") == 0


def test_a_chunked_body_of_10_mb_arrives_whole_and_names_its_session(stack, predictor):
    body = json.dumps({"messages": ["wort " * 2_000_000], "session_id": "late"}).encode()
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    assert post(stack, CHAT, None, content=pieces).status_code == 200
    assert stack.seen.bodies == [body]
    check_turn(predictor.wait_for(2), "late", "TOOL")


def test_a_huge_header_is_no_error_of_ours(stack, predictor):
    huge = "s" * 50_000
    assert post(stack, CHAT, huge, json={}).status_code == 200
    (name,) = stack.seen.headers[0]
    assert len(name) == 32
    check_turn(predictor.wait_for(2), name, "TOOL")


def test_a_response_that_cannot_be_read_is_passed_on_and_counted(stack, predictor):
    response = post(stack, CHAT + "?gzip=1", json={})
    assert response.content == openai_body(CALLS)
    check_turn(predictor.wait_for(2), "s", "UNSPECIFIED", [])
    assert stack.count("unparsed_bodies", where="response") == 1


@pytest.mark.parametrize("status", [400, 429, 503])
def test_an_error_response_is_an_aborted_turn(stack, predictor, status):
    assert post(stack, f"{CHAT}?status={status}", json={}).status_code == status
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("unparsed_bodies", where="response") == 0


def test_a_request_that_is_refused_unread_is_no_turn(stack, predictor):
    assert post(stack, CHAT + "?refuse=1", json={}).status_code == 401
    time.sleep(0.2)
    assert not predictor.events


def test_a_client_that_leaves_in_mid_stream_is_an_aborted_turn(stack, predictor):
    with stack.client.stream(
        "POST", CHAT + "?stream=hang", json={}, headers={"x-session-id": "s"}
    ) as response:
        next(response.iter_raw())
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("turns", outcome="aborted") == 1


def test_an_application_that_fails_in_mid_stream_is_an_aborted_turn(stack, predictor):
    with pytest.raises(httpx.RemoteProtocolError):
        post(stack, CHAT + "?stream=fail", json={})
    check_turn(predictor.wait_for(2), "s", "ABORTED", [])
    assert stack.count("middleware_failures") == 0


def test_parallel_sessions_do_not_mix(stack, predictor):
    async def run():
        async with httpx.AsyncClient(base_url=stack.client.base_url, timeout=30) as client:
            await asyncio.gather(
                *(
                    client.post(CHAT + "?stream=all", json={}, headers={"x-session-id": f"s{n}"})
                    for n in range(40)
                )
            )

    asyncio.run(run())
    by_turn: dict[str, list] = {}
    for event in predictor.wait_for(80):
        by_turn.setdefault(event.turn, []).append(event)
    assert sorted(events[0].session for events in by_turn.values()) == sorted(
        hash_session(f"s{n}", "k") for n in range(40)
    )
    for events in by_turn.values():
        assert events[0].session == events[1].session
        assert len(events[1].turn_ended.tool_calls) == 2
