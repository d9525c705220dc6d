"""Trace files with short sessions, for tests of the commands that replay."""

from __future__ import annotations

from pathlib import Path

from tests.bench.sample_turns import trace_line


def write_traces(
    file: Path, sessions: int, turns: int = 4, first: int = 800, growth: int = 300
) -> Path:
    """Sessions s0, s1, …: prompts of first, first + growth, … tokens; returns the file."""
    lines = [
        trace_line(
            session=f"s{session}",
            turn=turn,
            prompt_tokens=first + growth * turn + session,
            output_tokens=20,
            reuse_s=0.3 * session,
        )
        for session in range(sessions)
        for turn in range(turns)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file
