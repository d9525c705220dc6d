"""identity.py: which session a request belongs to."""

import base64
import hashlib
import json

import pytest
from cachewise_engine_hook.identity import hash_session, read_body, resolve_session
from hypothesis import given
from hypothesis import strategies as st

UUID = "0b5e9c1a-2f3d-4c5b-8a7e-1234567890ab"
CLAUDE_USER_ID = f"user_{'a' * 64}_account_{UUID[::-1]}_session_{UUID}"


def name(headers=(), body=None, **options):
    session = resolve_session(headers, body or {}, **options)
    return session and session.name


def test_the_sources_have_the_recorded_precedence():
    headers = [(b"x-claude-code-session-id", b"claude"), (b"X-Session-ID", b"header")]
    body = {"session_id": "body", "metadata": {"user_id": CLAUDE_USER_ID}}
    assert name(headers, body) == "body"
    assert name(headers, body | {"session_id": None}) == "header"
    assert name(headers[:1], body | {"session_id": ""}) == "claude"
    assert name((), body | {"session_id": 7}) == UUID
    assert name() is None


@pytest.mark.parametrize(
    "user_id", [CLAUDE_USER_ID, json.dumps({"device_id": "d", "session_id": UUID})]
)
def test_claude_codes_metadata_names_the_session_in_both_forms(user_id):
    assert name((), {"metadata": {"user_id": user_id}}) == UUID


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        "x",
        {},
        {"user_id": 3},
        {"user_id": "someone"},
        {"user_id": "_session_1"},
        {"user_id": '{"session_id": 5}'},
        {"user_id": "[1]"},
        {"user_id": "[" * 4000},
        {"user_id": "x" * 100_000 + f"_session_{UUID}"},
    ],
)
def test_metadata_without_a_session_names_none(metadata):
    assert name((), {"metadata": metadata}) is None


def test_a_subagent_is_a_session_of_its_own_unless_the_body_names_one():
    agent = [(b"x-claude-code-agent-id", b"a7")]
    assert name([*agent, (b"x-session-id", b"s")]) == "s/a7"
    assert name(agent, {"metadata": {"user_id": CLAUDE_USER_ID}}) == f"{UUID}/a7"
    assert name(agent, {"session_id": "s"}) == "s"
    assert name(agent) is None


@pytest.mark.parametrize("address", ["10.0.3.17:8000", "[fd00::17]:8000", "fd00::17:8000"])
def test_the_pod_address_that_aibrix_sends_is_no_session(address):
    header = (b"x-session-id", base64.b64encode(address.encode()))
    assert name([header]) is None
    assert name([header, (b"x-claude-code-session-id", b"claude")]) == "claude"


def test_base64_that_is_no_address_is_a_session():
    assert name([(b"x-session-id", base64.b64encode(b"session:12"))]) is not None


@pytest.mark.parametrize("value", ["s" * 257, "s" * 1_000_000, "sitzung-ü", "a\tb"])
def test_a_name_that_no_header_can_carry_is_hashed(value):
    session = resolve_session([(b"x-session-id", value.encode("latin-1"))], {})
    digest = hashlib.blake2b(value.encode(), digest_size=16).hexdigest()
    assert session.name == digest
    assert session.header == digest.encode()


def test_a_body_name_stays_as_it_is_where_vllm_reads_it_and_fits_the_header_elsewhere():
    body = {"session_id": "ü" * 300}
    here = resolve_session((), body)
    assert here.name == "ü" * 300
    assert here.header is None
    elsewhere = resolve_session((), body, vllm_reads_body=False)
    assert elsewhere.header == elsewhere.name.encode()


def test_of_equal_headers_the_first_counts_as_in_vllm():
    assert name([(b"x-session-id", b"one"), (b"x-session-id", b"two")]) == "one"


def test_the_hash_is_keyed_blake2b():
    expected = hashlib.blake2b(b"name", key=b"key", digest_size=16).hexdigest()
    assert hash_session("name", "key") == expected
    assert hash_session("name", "k" * 64) == hash_session("name", "k" * 100)
    assert len(hash_session("name\ud800", "")) == 32


@given(st.binary(max_size=60), st.text(max_size=300))
def test_any_header_and_any_name_give_a_name_that_a_header_can_carry(value, user_id):
    for session in (
        resolve_session([(b"x-session-id", value)], {}),
        resolve_session((), {"metadata": {"user_id": json.dumps({"session_id": user_id})}}),
    ):
        if session:
            assert session.header == session.name.encode("ascii")
            assert 0 < len(session.header) <= 256


def test_only_the_parts_of_a_body_that_name_a_session_or_hold_hints_are_built():
    parts = {"session_id": "s", "metadata": {"a": 1}, "nvext": {"b": 2}}
    data = json.dumps({"messages": [{"content": "x"}], **parts})
    assert read_body(data.encode()) == parts


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"\x1f\x8b\x08",
        b'{"session_id": "\xff"}',
        b'{"session_id": 1',
        b'{"a":' + b"[" * 200_000,
        b'{"metadata":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_a_malformed_body_is_refused_with_an_error_that_callers_know(data):
    with pytest.raises((ValueError, RecursionError)):
        read_body(data)
