"""Files of JSON lines -> records, one at a time; *.gz is unpacked.

A line that cannot be read is named in the report, never raised. documents.py does the same for one
large JSON document.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .report import ReadReport

MAX_LINE_BYTES = 64 * 2**20
REPORT_EVERY = 500
"""Records between two calls of on_bytes."""

Record = tuple[str, dict[str, Any]]
"""FILE:NUMBER (of the line, or of the element in the document, from 1), and what is there."""
OnBytes = Callable[[int], None]
"""Gets the size of the file's part that was read so far."""


def json_lines(path: Path, report: ReadReport, on_bytes: OnBytes) -> Iterator[Record]:
    for number, line in _lines(path, report, on_bytes):
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
            if b"\\ud" in line.lower():
                record = without_lone_surrogates(record)
        except (ValueError, RecursionError) as error:
            report.add_broken(place, f"not JSON: {error}")
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            report.add_broken(place, f"an object is expected, not {type(record).__name__}")


def _lines(path: Path, report: ReadReport, on_bytes: OnBytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    number = 0
    try:
        with path.open("rb") as raw, unpacked(path, raw) as file:
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if number % REPORT_EVERY == 0:
                    on_bytes(raw.tell())
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    report.add_broken(f"{path}:{number}", f"longer than {MAX_LINE_BYTES:,} bytes")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MAX_LINE_BYTES)
                elif line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        report.add_broken(f"{path}:{number + 1}", f"cannot be read further: {error}")


def without_lone_surrogates(value: Any) -> Any:
    """JSON can escape halves of characters, which no text that leaves the process may hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """The file's content."""
    return gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[return-value]
