"""Normalised traces as input: checked, redacted and joined.

For traces that were made elsewhere, perhaps without redaction. Lines keep their numbers, sessions
their names: give files that share names apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .turns import Call, Turn, as_text, count_of, seconds_of


class Normalized:
    def start(self, file: Path) -> None:
        """Every line stands for itself."""

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        after, calls = record["next"], record["tools"]
        if after not in ("tool", "human", "end"):
            raise ValueError(f"next is {str(after)[:40]!r}")
        if not isinstance(calls, list):
            raise ValueError("tools is not a list")
        output = record.get("output_tokens")
        yield Turn(
            session=str(record["session"]),
            requested_at=_time(record, "t_request") or 0.0,
            ended_at=_time(record, "t_response_end") or 0.0,
            agent=str(record.get("agent") or ""),
            number=count_of(record["turn"], "turn"),
            prompt_tokens=count_of(record.get("prompt_tokens"), "prompt_tokens"),
            cached_tokens=count_of(record.get("cached_tokens"), "cached_tokens"),
            output_tokens=None if output is None else count_of(output, "output_tokens"),
            output_chars=count_of(record.get("output_chars"), "output_chars"),
            calls=[_call(call) for call in calls],
            after=after,
            reuse_s=_time(record, "reuse_s"),
            model=str(record.get("model") or ""),
            permission=str(record.get("perm") or ""),
            project=str(record.get("project") or ""),
            parent=str(record.get("parent") or ""),
        )

    def finish(self) -> Iterator[Turn]:
        yield from ()


def _call(call: Mapping[str, Any]) -> Call:
    return Call(
        name=str(call["name"]),
        arguments=as_text(call.get("args", "")),
        started_at=_time(call, "t_start") or 0.0,
        ended_at=_time(call, "t_end"),
        seconds=_time(call, "dur"),
        quality=str(call.get("dur_q") or "none"),
        result_chars=count_of(call.get("out_chars"), "out_chars"),
    )


def _time(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    return None if value is None else seconds_of(value, key)
