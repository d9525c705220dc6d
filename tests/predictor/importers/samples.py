"""Small logs in every format, and reading them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cachewise_predictor.importers.command import FORMATS, ImportReport, read_turns
from cachewise_predictor.importers.turns import Turn

RAW_LOGS = Path(__file__).parents[3].parent / "shared" / "cases" / "raw-logs"


def read(name: str, path: Path) -> tuple[list[Turn], ImportReport]:
    """All turns of one file."""
    report = ImportReport()
    return list(read_turns(FORMATS[name], [path], report, lambda file, size: None)), report


def write_lines(path: Path, records: Iterable[object]) -> Path:
    """JSON lines; a string stands for itself."""
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return path


def iso(second: float) -> str:
    return f"2026-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"


def claude(kind: str, second: float, session: str = "abc", **fields: Any) -> dict[str, Any]:
    """A line of Claude Code's log, so many seconds into an hour."""
    return {
        "type": kind,
        "sessionId": session,
        "isSidechain": False,
        "cwd": "/home/me/repo",
        "timestamp": iso(second),
        **fields,
    }


def claude_says(second: float, message_id: str, *content: Mapping[str, Any], **fields: Any) -> Any:
    """A line of an assistant's message, which is complete."""
    message = {
        "id": message_id,
        "model": "claude",
        "stop_reason": "tool_use",
        "content": list(content),
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 490, "output_tokens": 80},
    }
    return claude("assistant", second, message=message, **fields)


def claude_call(identity: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def claude_result(second: float, identity: str, text: str = "ok", **fields: Any) -> dict[str, Any]:
    is_error = fields.pop("is_error", False)
    block = {
        "type": "tool_result",
        "tool_use_id": identity,
        "content": text,
        "is_error": is_error,
    }
    return claude("user", second, message={"role": "user", "content": [block]}, **fields)


def codex(kind: str, second: float, **payload: Any) -> dict[str, Any]:
    """A line of Codex' log; `type` of the payload is given as `item`."""
    if "item" in payload:
        payload["type"] = payload.pop("item")
    return {"timestamp": iso(second), "type": kind, "payload": payload}


def codex_call(second: float, identity: str, **arguments: Any) -> dict[str, Any]:
    text = json.dumps({"cmd": "make", **arguments})
    fields = {"item": "function_call", "name": "exec_command", "arguments": text}
    return codex("response_item", second, call_id=identity, **fields)


def codex_output(second: float, identity: str, text: object = "done") -> dict[str, Any]:
    fields: dict[str, Any] = {"item": "function_call_output", "output": text}
    return codex("response_item", second, call_id=identity, **fields)


def codex_count(second: float, total: int, prompt: int = 500) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "cached_input_tokens": 400, "output_tokens": 30}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": usage}
    return codex("event_msg", second, item="token_count", info=info)
