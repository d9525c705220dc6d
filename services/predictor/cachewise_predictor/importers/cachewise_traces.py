"""The public traces of the CacheWise paper (CATraces: github.com/cachewise-project/
cachewise-coding-traces), as far as published descriptions of them go; the files were not at hand.

Known (third parties' loaders and notes on revision 181c435): Claude Code sessions as
parsed_traces/PROJECT/SESSION/events.json, each a JSON array of events with an `event_type`.
    llm_call    session_id, request_id, timestamp (ISO 8601), input_tokens,
                cache_creation_input_tokens, cache_read_input_tokens, output_tokens
    tool_call   tool_name, tool_input (of shells "<redacted>"), execution_time_ms, is_error,
                has_result, associated_llm_call_id
Assumed here: events are in the order of time, and a tool_call follows its llm_call; an event's
timestamp is that of its log line, so a response ends with its last call's, a result comes
execution_time_ms after its call's, and the next request goes out with the last result.
execution_time_ms is the difference of two lines, so it may have a permission prompt in it
(Claude Code's rules, mode unknown). An event of another type with "user" or "human" in its name is
a person's prompt at its timestamp: it is the next request after a turn without calls; where it
lacks, the wait of such a turn is unknown and the turn ends its session's chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .chains import Chains
from .claude_code import asks_always, may_ask
from .turns import (
    Call,
    Skip,
    Turn,
    anonymous,
    as_text,
    count_of,
    iso_time,
    project_name,
    seconds_of,
)


class CacheWiseTraces:
    """Records: the elements of events.json."""

    def __init__(self) -> None:
        self._chains = Chains()
        self.start(Path())

    def start(self, file: Path) -> None:
        session = file.resolve().parent
        self._session, self._project = anonymous(str(session)), project_name(str(session.parent))
        self._prompted_at: float | None = None

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        kind = record["event_type"]
        at = iso_time(record.get("timestamp"))
        if kind == "llm_call":
            yield from self._take_response(record, at)
        elif kind == "tool_call":
            self._take_call(record, at)
        elif "user" in str(kind) or "human" in str(kind):
            self._prompted_at = at
        else:
            raise Skip(f"{str(kind)[:40]} events")

    def finish(self) -> Iterator[Turn]:
        yield from self._chains.finish()

    def _take_response(self, record: Mapping[str, Any], at: float) -> Iterator[Turn]:
        keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        prompt = sum(count_of(record.get(key), key) for key in keys)
        if not prompt:
            raise Skip("responses without input tokens")
        before = self._chains.open_turn(self._session)
        requested_at = self._requested_at(before)
        if before is not None and requested_at is None:
            yield from self._chains.finish()
        turn = Turn(self._session, at if requested_at is None else requested_at, at, "claude-code")
        turn.prompt_tokens, turn.project = prompt, self._project
        turn.cached_tokens = count_of(record.get(keys[2]), keys[2])
        turn.output_tokens = count_of(record.get("output_tokens"), "output_tokens")
        self._prompted_at = None
        yield from self._chains.begin(turn)

    def _requested_at(self, before: Turn | None) -> float | None:
        """When the next request goes out, as far as the trace tells."""
        if before is None or not before.calls:
            return self._prompted_at
        ends = [call.ended_at for call in before.calls if call.ended_at is not None]
        return max(ends) if len(ends) == len(before.calls) else None

    def _take_call(self, record: Mapping[str, Any], at: float) -> None:
        turn = self._chains.open_turn(self._session)
        if turn is None:
            raise Skip("calls without a response")
        call = Call(str(record["tool_name"]), as_text(record.get("tool_input") or ""), at)
        if (milliseconds := record.get("execution_time_ms")) is not None:
            call.seconds = max(seconds_of(milliseconds, "execution_time_ms") / 1_000, 0.0)
            call.ended_at = at + call.seconds
            call.quality = "stamps_may_prompt" if may_ask("", call.name) else "stamps"
            if asks_always(call.name):
                call.quality = "human"
        turn.ended_at = max(turn.ended_at, at)
        turn.calls.append(call)
