"""Responses as vLLM writes them, made from tool calls: for the parsers and the middleware."""

import json


def sse(*events, named=False, ending="\n"):
    """Server-sent events; named: with an event line, as in Anthropic's dialect."""
    lines = []
    for event in events:
        if named:
            lines.append(f"event: {event['type']}")
        text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        lines += [f"data: {text}", ""]
    return "".join(line + ending for line in lines).encode()


def openai_body(calls, reason="tool_calls"):
    tool_calls = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
    ]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    ).encode()


def openai_delta(index, call_id=None, name=None, arguments=None, choice=0):
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": call_id, "type": "function", "function": function}
    return {"choices": [{"index": choice, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


def openai_finish(reason, choice=0):
    return {"choices": [{"index": choice, "delta": {}, "finish_reason": reason}]}


def openai_stream(calls, reason="tool_calls", piece=7):
    """Each call's start, then its arguments in pieces, one of each call in turn."""
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [openai_delta(i, call_id, name, "") for i, (call_id, name, _) in enumerate(calls)]
    longest = max((len(arguments) for _, _, arguments in calls), default=0)
    for start in range(0, longest, piece):
        for index, (_, _, arguments) in enumerate(calls):
            if part := arguments[start : start + piece]:
                events.append(openai_delta(index, arguments=part))
    return sse(*events, openai_finish(reason), {"choices": [], "usage": {}}, "[DONE]")


def anthropic_body(calls, reason="tool_use"):
    content = [{"type": "text", "text": "I look."}]
    content += [
        {"type": "tool_use", "id": i, "name": n, "input": json.loads(a)} for i, n, a in calls
    ]
    return json.dumps({"type": "message", "content": content, "stop_reason": reason}).encode()


def anthropic_stream(calls, reason="tool_use", piece=7):
    text = {"type": "text", "text": ""}
    events = [
        {"type": "message_start", "message": {"content": []}},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hm"}},
        {"type": "content_block_stop", "index": 0},
    ]
    for index, (call_id, name, arguments) in enumerate(calls, 1):
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        for start in range(0, len(arguments), piece):
            delta = {"type": "input_json_delta", "partial_json": arguments[start : start + piece]}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": reason}})
    return sse(*events, {"type": "message_stop"}, named=True)
