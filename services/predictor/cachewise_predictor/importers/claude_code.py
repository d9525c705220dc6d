"""Claude Code's logs (~/.claude/projects): one file per session, one line per content block of a
message.

The lines of one assistant message share its id and repeat its usage; together they are a turn. Its
prompt is what the usage counts as input, cached or not. The request went out when the user line
before it was written: a prompt, or the result of the last tool. A resumed session copies its
history into a new file, so each message id counts once. Lines of a subagent (isSidechain) belong
to a chain of their own.

A person may be asked for permission unless the mode says otherwise (`permissionMode` of the last
prompt) or the tool is one that never asks. Where the log tells how long the tool itself ran (its
result's own duration, or the progress of a command) a prompt shows as the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .chains import Bounded, Chains
from .turns import (
    Call,
    Skip,
    Turn,
    anonymous,
    as_text,
    count_of,
    iso_time,
    judge,
    project_name,
    seconds_of,
)

_MODES_THAT_NEVER_ASK = frozenset(("bypassPermissions", "auto", "dontAsk"))
_NEVER_ASK = frozenset(
    ("Read", "Glob", "Grep", "LS", "NotebookRead", "TodoRead", "TodoWrite", "ToolSearch")
    + ("Task", "Agent", "BashOutput", "KillShell", "KillBash")
    + ("TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate")
)
_ASK_ALWAYS = frozenset(("AskUserQuestion", "ExitPlanMode", "EnterPlanMode"))
_DURATIONS = (("durationMs", 1e-3), ("totalDurationMs", 1e-3), ("durationSeconds", 1.0))
"""Keys of a tool's result, and their units in seconds."""
_REFUSED = ("User rejected", "The user doesn't want to")
_MOST_KNOWN, _MOST_OPEN = 500_000, 10_000


class ClaudeCode:
    def __init__(self) -> None:
        self._chains = Chains()
        self._seen: Bounded[int, None] = Bounded(_MOST_KNOWN)
        """Hashes of the ids of messages, of all files."""
        self.start(Path())

    def start(self, file: Path) -> None:
        self._file = str(file)
        self._message: Bounded[str, str] = Bounded(_MOST_OPEN)
        """Id of each chain's open message."""
        self._calls: Bounded[str, tuple[Turn, Call]] = Bounded(_MOST_OPEN)
        self._ran_from: Bounded[str, float] = Bounded(_MOST_OPEN)
        self._last_user_at: Bounded[str, float] = Bounded(_MOST_OPEN)
        self._modes: Bounded[str, str] = Bounded(_MOST_OPEN)
        self._roots: Bounded[str, str] = Bounded(_MOST_OPEN)

    def take(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        kind = record["type"]
        if kind == "progress":
            self._note_progress(record)
        elif kind not in ("user", "assistant"):
            raise Skip(f"{str(kind)[:40]} lines")
        elif record.get("isMeta"):
            raise Skip("meta lines")
        elif kind == "user":
            self._take_user(record)
        else:
            yield from self._take_assistant(record)

    def finish(self) -> Iterator[Turn]:
        self.start(Path())
        yield from self._chains.finish()

    def _take_user(self, record: Mapping[str, Any]) -> None:
        at = iso_time(record.get("timestamp"))
        if isinstance(mode := record.get("permissionMode"), str):
            self._modes[str(record.get("sessionId"))] = mode
        message = record.get("message")
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping) and block.get("type") == "tool_result":
                self._take_result(block, record, at)
        self._last_user_at[self._chain(record)] = at

    def _take_result(self, block: Mapping[str, Any], record: Mapping[str, Any], at: float) -> None:
        identity = str(block.get("tool_use_id"))
        turn, call = self._calls.pop(identity, (None, None))
        if turn is None or call is None:
            return
        result, text = record.get("toolUseResult"), as_text(block.get("content"))
        call.result_chars = len(text)
        measured_s = _measured_s(result)
        if (ran_from := self._ran_from.pop(identity, None)) is not None and measured_s is None:
            measured_s = max(at - ran_from, 0.0)
        mode = self._modes.get(str(record.get("sessionId")), "")
        judge(call, at, _free_since(turn, call), measured_s, may_ask(mode, call.name))
        if asks_always(call.name):
            call.quality = "human"
        if _is_background(call, result):
            call.quality = "background"
        if block.get("is_error") and any(words in f"{result} {text}" for words in _REFUSED):
            call.quality = "rejected"

    def _take_assistant(self, record: Mapping[str, Any]) -> Iterator[Turn]:
        at = iso_time(record.get("timestamp"))
        message = record.get("message")
        if not isinstance(message, Mapping) or not isinstance(message.get("id"), str):
            raise ValueError("an assistant line without a message id")
        if message.get("model") == "<synthetic>":
            raise Skip("Claude Code's own words, such as an error")
        usage, content = message.get("usage"), message.get("content")
        if not isinstance(usage, Mapping) or not isinstance(content, list):
            raise ValueError("an assistant message without usage or content")
        prompt_tokens = _prompt_tokens(usage)
        chain, identity = self._chain(record), message["id"]
        if self._message.get(chain) != identity:
            if hash(identity) in self._seen:
                raise Skip("lines of messages seen before (a resumed session copies its history)")
            self._seen[hash(identity)] = None
            self._message[chain] = identity
            yield from self._chains.begin(self._new_turn(chain, record, at))
        turn = self._chains.open_turn(chain)
        if turn is None:
            raise Skip("lines of sessions beyond the bound")
        turn.ended_at, turn.prompt_tokens = at, prompt_tokens
        turn.cached_tokens = count_of(usage.get("cache_read_input_tokens"), "usage")
        if message.get("stop_reason") is not None:
            turn.output_tokens = count_of(usage.get("output_tokens"), "usage.output_tokens")
        for block in content:
            if isinstance(block, Mapping):
                self._take_block(turn, block, at)

    def _new_turn(self, chain: str, record: Mapping[str, Any], at: float) -> Turn:
        session = str(record.get("sessionId") or self._file)
        turn = Turn(chain, self._last_user_at.get(chain, at), at, "claude-code")
        turn.model = str(record["message"].get("model") or "")
        turn.permission = self._modes.get(session, "")
        turn.project = project_name(record.get("cwd"))
        turn.parent = anonymous(session) if record.get("isSidechain") else ""
        return turn

    def _take_block(self, turn: Turn, block: Mapping[str, Any], at: float) -> None:
        text = block.get("text") or block.get("thinking") or ""
        if block.get("type") == "tool_use":
            text = as_text(block.get("input"))
            call = Call(str(block.get("name")), text, at)
            turn.calls.append(call)
            self._calls[str(block.get("id"))] = (turn, call)
        turn.output_chars += len(str(text))

    def _note_progress(self, record: Mapping[str, Any]) -> None:
        """A command's progress says since when it has been running."""
        data = record.get("data")
        if not isinstance(data, Mapping) or data.get("type") != "bash_progress":
            raise Skip("progress lines")
        elapsed_s = seconds_of(data.get("elapsedTimeSeconds"), "elapsedTimeSeconds")
        since = iso_time(record.get("timestamp")) - elapsed_s
        self._ran_from.setdefault(str(record.get("parentToolUseID")), since)

    def _chain(self, record: Mapping[str, Any]) -> str:
        """The session's name; a subagent's has its agent's, or that of its first line, appended."""
        session = anonymous(str(record.get("sessionId") or self._file))
        if not record.get("isSidechain"):
            return session
        uuid, parent = str(record.get("uuid")), str(record.get("parentUuid"))
        self._roots[uuid] = self._roots.get(parent, uuid)
        agent = str(record.get("agentId") or self._roots[uuid])
        return f"{session}/agent-{anonymous(agent)[:8]}"


def may_ask(mode: str, tool: str) -> bool:
    """Whether a person may have been asked to permit the call."""
    return mode not in _MODES_THAT_NEVER_ASK and tool not in _NEVER_ASK


def asks_always(tool: str) -> bool:
    """Whether the tool is a question to a person."""
    return tool in _ASK_ALWAYS


def _free_since(turn: Turn, call: Call) -> float:
    """When the call could begin: those that change something run one after another."""
    if call.name in _NEVER_ASK:
        return call.started_at
    return max([call.started_at, *(c.ended_at for c in turn.calls if c.ended_at is not None)])


def _measured_s(result: object) -> float | None:
    """How long the tool says that it took."""
    if isinstance(result, Mapping):
        for key, unit_s in (
            ("durationMs", 1e-3),
            ("totalDurationMs", 1e-3),
            ("durationSeconds", 1),
        ):
            if isinstance(value := result.get(key), int | float) and value >= 0:
                return seconds_of(value, key) * unit_s
    return None


def _is_background(call: Call, result: object) -> bool:
    is_async = isinstance(result, Mapping) and result.get("status") == "async_launched"
    return is_async or '"run_in_background": true' in call.arguments


def _prompt_tokens(usage: Mapping[str, Any]) -> int:
    """All input tokens of a request, cached or not."""
    keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    total = sum(count_of(usage.get(key), f"usage.{key}") for key in keys)
    if not total:
        raise ValueError("usage counts no input tokens")
    return total
