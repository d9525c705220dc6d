"""Agent sessions as closed loops over HTTP, for the compose drill.

Each turn repeats the whole conversation so far, gets one forced tool call back, waits as a tool
would, and goes on with the tool's output; after TURNS turns the model answers a person, and a new
session begins. Prints one line of JSON; exit status 1 if a request failed or lacked its tool call.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
import urllib.request
from typing import Any

COMMANDS = ["git status", "pytest -q", "make build", "ls -la", "rg forecast"]
TOOL = {
    "type": "function",
    "function": {
        "name": "Bash",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "enum": COMMANDS}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
TURNS = 6
WORDS_PER_RESULT = 150
MAX_WAIT_S = 1.5
TIMEOUT_S = 120


class Tally:
    """What all the sessions together have done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = self.tool_calls = 0
        self.failures: list[str] = []

    def add(self, tool_calls: int = 0, failure: str | None = None) -> None:
        with self.lock:
            self.requests += 1
            self.tool_calls += tool_calls
            if failure is not None:
                self.failures.append(failure)


def run_session(url: str, name: str, rng: random.Random, end: float, tally: Tally) -> None:
    """One session from its first turn to its last, or until the time `end`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": words(rng, 2 * WORDS_PER_RESULT)}]
    for turn in range(TURNS):
        is_last = turn == TURNS - 1
        try:
            answer = chat(url, name, messages, with_tool=not is_last)
        except (OSError, ValueError, LookupError) as error:
            tally.add(failure=f"{name} turn {turn}: {error!r}")
            return
        calls = answer.get("tool_calls") or []
        tally.add(len(calls), None if is_last or calls else f"{name} turn {turn}: no tool call")
        if is_last or not calls or time.monotonic() > end:
            return
        time.sleep(rng.uniform(0.0, MAX_WAIT_S))
        result = {"role": "tool", "tool_call_id": calls[0]["id"]}
        messages += [answer, {**result, "content": words(rng, WORDS_PER_RESULT)}]


def chat(url: str, session: str, messages: list[Any], with_tool: bool) -> dict[str, Any]:
    """The assistant's message to a chat request, with one forced tool call or with plain text."""
    body: dict[str, Any] = {"model": "cachewise", "messages": messages, "max_tokens": 48}
    if with_tool:
        choice = {"type": "function", "function": {"name": "Bash"}}
        body |= {"tools": [TOOL], "tool_choice": choice}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Session-ID": session},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)}


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(["file", "test", "cache", "block", "line", "queue"], k=count))


def main() -> int:
    """Keeps N sessions going for S seconds; with 0 seconds each makes one tool call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    args = parser.parse_args()
    tally, end = Tally(), time.monotonic() + args.seconds

    def keep_going(lane: int) -> None:
        rng = random.Random(lane)
        run_session(args.url, f"lane-{lane}-{rng.random()}", rng, end, tally)
        while time.monotonic() < end:
            run_session(args.url, f"lane-{lane}-{rng.random()}", rng, end, tally)

    threads = [threading.Thread(target=keep_going, args=(lane,)) for lane in range(args.sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = len(tally.failures)
    figures = {"requests": tally.requests, "tool_calls": tally.tool_calls, "failed": failed}
    sys.stdout.write(json.dumps(figures | {"first_failures": tally.failures[:3]}) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
