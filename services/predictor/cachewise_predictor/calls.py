"""What the arguments of a tool call say about how long it takes, from the general to the special.

    kind      the tool; for a script that calls tools (Codex' exec) with the first of them
    limit     when it returns at the latest: yield_time_ms of a polled command, timeout, background
    program   what a shell command runs first, behind `cd … &&`, variables, sudo and the like
    action    the program with its first word that is no option: `git push`, `npm run`
    command   the whole command, or all arguments, with every number as 0; kept as a hash only

Arguments are JSON text, or a script, and may be cut anywhere: everything is found by pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from .events import ToolCall

MAX_NAME = 80
"""Characters of a kind, limit, program or action; the rest is cut."""

_MAX_REMEMBERED = 8_192
"""Calls that were read last: each is asked for several times until its wait is over."""

_SHELLS = frozenset(("bash", "exec", "exec_command", "shell", "powershell"))
_SCRIPTED = re.compile(r"\btools\.(\w+)")
_COMMAND = re.compile(r"(?:command|cmd)\\?\"?\s{0,4}:\s{0,4}\\?[\"'`]((?:\\[^\"]|[^\"\\`])*)")
_BEFORE_PROGRAM = re.compile(
    r"\s*(?:(?:cd|set|export|source|\.)\s[^&;|\n]*?(?:&&|;|\\n|\n)\s*)*"
    r"(?:[A-Z_][A-Z_0-9]*=\S+\s+)*(?:(?:sudo|time|nohup|timeout\s+\S+|env)\s+)*"
)
_PROGRAM = re.compile(r"[^\s\"'\\;|&]+")
_LIMIT = re.compile(r"(yield_time_ms|timeout(?:_ms|Ms)?)\\?\"?\s{0,4}:\s{0,4}(\d{1,9})")
_BACKGROUND = re.compile(r"run_in_background\\?\"?\s{0,4}:\s{0,4}true")
_NUMBER = re.compile(r"\d+")


class CallParts(NamedTuple):
    """Names; the empty string where there is none."""

    kind: str
    limit: str
    program: str
    action: str
    command: str


@lru_cache(_MAX_REMEMBERED)
def read_call(call: ToolCall) -> CallParts:
    arguments = call.arguments
    found = _COMMAND.search(arguments)
    command = _BEFORE_PROGRAM.sub("", found[1], count=1) if found else ""
    program = _PROGRAM.match(command)
    words = [word for word in command.split() if not word.startswith("-")]
    return CallParts(
        kind=_kind(call)[:MAX_NAME],
        limit=_limit(arguments),
        program=program[0].split("/")[-1][:MAX_NAME] if program else "",
        action=" ".join(words[:2])[:MAX_NAME],
        command=fingerprint(_NUMBER.sub("0", command or arguments)),
    )


def call_from_text(tool: str, text: str) -> ToolCall:
    """A call as a person writes it: a shell's arguments may be just the command."""
    is_command = tool.lower() in _SHELLS and not (_COMMAND.search(text) or _SCRIPTED.search(text))
    return ToolCall(tool, json.dumps({"command": text}) if is_command and text else text)


def main_call(calls: Iterable[ToolCall]) -> ToolCall:
    """The one that says most about the wait: a shell's before all, then the longest."""
    return max(calls, key=lambda call: (call.name.lower() in _SHELLS, len(call.arguments)))


def main_kind(calls: Iterable[ToolCall]) -> str:
    """The kind of the main call."""
    return _kind(main_call(calls))[:MAX_NAME]


def _kind(call: ToolCall) -> str:
    scripted = _SCRIPTED.search(call.arguments) if call.name == "exec" else None
    return f"{call.name}:{scripted[1]}" if scripted else call.name


def _limit(arguments: str) -> str:
    if limit := _LIMIT.search(arguments):
        return f"{limit[1]} {limit[2]}"
    return "background" if _BACKGROUND.search(arguments) else ""


def fingerprint(text: str) -> str:
    """Stands for text that may be private."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
