"""tool_calls.py, framing.py, redaction.py: the calls in a response, whatever its chunks."""

import json

import pytest
from cachewise_engine_hook import framing
from cachewise_engine_hook.tool_calls import (
    MAX_CALLS,
    AnthropicMessages,
    OpenAIChat,
    Outcome,
    ResponseParser,
    ToolCall,
)
from cachewise_proto.redaction import MAX_ARGUMENT_CHARS
from hypothesis import given
from hypothesis import strategies as st

from .responses import (
    anthropic_body,
    anthropic_stream,
    openai_body,
    openai_delta,
    openai_finish,
    openai_stream,
    sse,
)

CALLS = [
    ("call_1", "Bash", '{"command": "git status → größe"}'),
    ("call_2", "Read", '{"path": "/tmp/日本語"}'),
]
EXPECTED = tuple(ToolCall(*call) for call in CALLS)
RESPONSES = {
    "openai": (OpenAIChat, False, openai_body),
    "openai stream": (OpenAIChat, True, openai_stream),
    "anthropic": (AnthropicMessages, False, anthropic_body),
    "anthropic stream": (AnthropicMessages, True, anthropic_stream),
}


def read(dialect, is_stream, *chunks, is_cut=False):
    parser = ResponseParser(dialect, is_stream=is_stream)
    for chunk in chunks:
        parser.feed(chunk)
    if not is_cut:
        parser.end()
    return parser.reading(is_cut=is_cut), parser


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("kind", RESPONSES)
def test_parallel_calls_are_read_whole(kind):
    dialect, is_stream, write = RESPONSES[kind]
    reading, parser = read(dialect, is_stream, write(CALLS))
    assert reading.tool_calls == EXPECTED
    assert reading.outcome is Outcome.TOOL
    assert parser.is_complete == is_stream
    assert not parser.is_broken


@pytest.mark.parametrize("kind", RESPONSES)
def test_single_bytes_give_the_same_as_the_whole(kind):
    dialect, is_stream, write = RESPONSES[kind]
    data = write(CALLS)
    reading, parser = read(dialect, is_stream, *(bytes([byte]) for byte in data))
    assert reading.tool_calls == EXPECTED
    assert not parser.is_broken


arguments_texts = st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
call_lists = st.lists(
    st.tuples(st.uuids().map(str), st.sampled_from(["Bash", "Lesen", "讀"]), arguments_texts),
    max_size=4,
)


@pytest.mark.parametrize("kind", RESPONSES)
@given(call_lists, st.lists(st.integers(0, 10_000)), st.integers(1, 9))
def test_any_chunking_of_any_calls_gives_those_calls(kind, calls, places, piece):
    dialect, is_stream, write = RESPONSES[kind]
    data = write(calls, piece=piece) if is_stream else write(calls)
    reading, parser = read(dialect, is_stream, *cut(data, places))
    assert [(c.id, c.name) for c in reading.tool_calls] == [(i, n) for i, n, _ in calls]
    whole, _ = read(dialect, is_stream, data)
    assert reading == whole
    assert not parser.is_broken


@pytest.mark.parametrize("kind", RESPONSES)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300)), st.integers(0, 2000))
def test_damaged_bytes_raise_nothing_and_read_alike_in_any_chunking(kind, noise, places, at):
    dialect, is_stream, write = RESPONSES[kind]
    data = write(CALLS)
    data = data[: at % len(data)] + noise + data[at % len(data) :]
    chunked, one = read(dialect, is_stream, *cut(data, places)), read(dialect, is_stream, data)
    assert chunked[0] == one[0]
    assert chunked[1].is_broken == one[1].is_broken


KEYS = (
    *("choices", "delta", "message", "tool_calls", "function", "name", "arguments", "index", "id"),
    *("type", "content", "content_block", "input", "partial_json", "stop_reason"),
    *("finish_reason", "error"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", RESPONSES)
@given(st.lists(json_values, max_size=5))
def test_json_of_any_shape_raises_nothing(kind, values):
    dialect, is_stream, _ = RESPONSES[kind]
    texts = [json.dumps(value) for value in values]
    read(dialect, is_stream, sse(*texts) if is_stream else "".join(texts).encode())


def test_a_whole_call_may_come_in_one_delta():
    events = [openai_delta(i, *call) for i, call in enumerate(CALLS)]
    reading, _ = read(OpenAIChat, True, sse(*events, openai_finish("tool_calls"), "[DONE]"))
    assert reading.tool_calls == EXPECTED


def test_whole_calls_that_share_an_index_are_two_calls():
    events = [openai_delta(0, *call) for call in CALLS]
    reading, _ = read(OpenAIChat, True, sse(*events, openai_finish("tool_calls")))
    assert reading.tool_calls == EXPECTED


def test_a_delta_that_repeats_id_and_name_goes_on_with_its_call():
    events = [openai_delta(0, "c", "Bash", part) for part in ('{"a"', ": 1}")]
    reading, _ = read(OpenAIChat, True, sse(*events, openai_finish("stop")))
    assert reading.tool_calls == (ToolCall("c", "Bash", '{"a": 1}'),)
    assert reading.outcome is Outcome.TOOL


def test_calls_of_several_choices_stay_apart():
    events = [openai_delta(0, f"c{i}", "Bash", '{"n":', choice=i) for i in (0, 1)]
    events += [openai_delta(0, arguments=f"{i}}}", choice=i) for i in (1, 0)]
    reading, _ = read(OpenAIChat, True, sse(*events, openai_finish("tool_calls"), ending="\r\n"))
    assert [c.arguments for c in reading.tool_calls] == ['{"n":0}', '{"n":1}']


def test_a_surrogate_pair_whose_halves_come_in_two_deltas_is_one_character():
    parts = [
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c",'
        b'"function":{"name":"B","arguments":"\\ud83d"}}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,'
        b'"function":{"arguments":"\\ude00 \\ud83d"}}]}}]}\n\n',
    ]
    reading, _ = read(OpenAIChat, True, *parts)
    assert reading.tool_calls[0].arguments == "\U0001f600 \ufffd"


def test_a_stream_may_lack_its_last_empty_line():
    reading, parser = read(OpenAIChat, True, sse(openai_finish("stop")).rstrip())
    assert reading.outcome is Outcome.HUMAN
    assert not parser.is_complete


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("stop", Outcome.HUMAN),
        ("length", Outcome.LENGTH),
        ("tool_calls", Outcome.TOOL),
        ("abort", Outcome.ABORTED),
        ("something new", Outcome.UNSPECIFIED),
        (None, Outcome.UNSPECIFIED),
    ],
)
def test_the_finish_reason_gives_the_outcome(reason, outcome):
    for is_stream, write in ((False, openai_body), (True, openai_stream)):
        assert read(OpenAIChat, is_stream, write([], reason=reason))[0].outcome is outcome


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end_turn", Outcome.HUMAN),
        ("stop_sequence", Outcome.HUMAN),
        ("max_tokens", Outcome.LENGTH),
        ("tool_use", Outcome.TOOL),
    ],
)
def test_the_stop_reason_gives_the_outcome(reason, outcome):
    for is_stream, write in ((False, anthropic_body), (True, anthropic_stream)):
        assert read(AnthropicMessages, is_stream, write([], reason=reason))[0].outcome is outcome


def test_a_response_that_was_cut_is_aborted_and_its_calls_do_not_count():
    data = openai_stream(CALLS)
    before_finish = data[: data.index(b'"finish_reason": "tool_calls"')]
    reading, _ = read(OpenAIChat, True, before_finish, is_cut=True)
    assert (reading.tool_calls, reading.outcome) == ((), Outcome.ABORTED)


def test_a_client_that_leaves_after_the_finish_reason_has_had_its_turn():
    data = openai_stream(CALLS).removesuffix(b"data: [DONE]\n\n")
    reading, _ = read(OpenAIChat, True, data, is_cut=True)
    assert (reading.tool_calls, reading.outcome) == (EXPECTED, Outcome.TOOL)


def test_an_error_in_the_stream_is_an_aborted_turn():
    for dialect, event in (
        (OpenAIChat, {"error": {"message": "x"}}),
        (AnthropicMessages, {"type": "error", "error": {"type": "overloaded_error"}}),
    ):
        reading, _ = read(dialect, True, sse(openai_delta(0, *CALLS[0]), event))
        assert (reading.tool_calls, reading.outcome) == ((), Outcome.ABORTED)


def test_an_event_that_is_no_json_is_skipped_and_noted():
    data = sse(openai_delta(0, *CALLS[0]), '{"choices": [', "7", openai_finish("tool_calls"))
    reading, parser = read(OpenAIChat, True, data)
    assert reading.tool_calls == EXPECTED[:1]
    assert parser.is_broken


def test_a_text_over_the_limit_is_skipped_and_noted(monkeypatch):
    monkeypatch.setattr(framing, "MAX_TEXT_BYTES", 1000)
    long_delta = openai_delta(1, "c", "Bash", "x" * 2000)
    data = sse(openai_delta(0, *CALLS[0]), long_delta, openai_finish("tool_calls"))
    for chunks in ([data], cut(data, range(0, len(data), 100))):
        reading, parser = read(OpenAIChat, True, *chunks)
        assert reading.tool_calls == EXPECTED[:1]
        assert parser.is_broken
    reading, parser = read(OpenAIChat, False, *cut(openai_body(CALLS * 20), range(0, 9000, 100)))
    assert reading.outcome is Outcome.UNSPECIFIED
    assert parser.is_broken


def test_deep_nesting_is_noted_and_raises_nothing():
    deep = b"[" * 200_000 + b"]" * 200_000
    for is_stream, data in ((False, b'{"choices":' + deep + b"}"), (True, b"data: " + deep)):
        assert read(OpenAIChat, is_stream, data)[1].is_broken


def test_the_number_of_calls_and_their_length_are_bounded():
    many = [(f"c{i}", "B" * 1000, json.dumps({"text": "x " * 3_000})) for i in range(MAX_CALLS + 9)]
    for kind in RESPONSES:
        dialect, is_stream, write = RESPONSES[kind]
        reading, _ = read(dialect, is_stream, write(many))
        assert len(reading.tool_calls) == MAX_CALLS
        assert {len(call.arguments) for call in reading.tool_calls} == {MAX_ARGUMENT_CHARS}
        assert {len(call.name) for call in reading.tool_calls} == {256}
