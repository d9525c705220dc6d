"""One large JSON document -> its records, one at a time, in the memory of the largest.

The document is an array of objects, or an object with one large array among its members. Python's
own decoder reads value after value from a buffer that grows until the value is whole.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .records import REPORT_EVERY, OnBytes, Record, unpacked, without_lone_surrogates
from .report import ReadReport

MAX_VALUE_CHARS = 64 * 2**20
_CHUNK = 2**18
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")


def json_items(path: Path, array: str, report: ReadReport, on_bytes: OnBytes) -> Iterator[Record]:
    """The document's elements, if it is an array; else those of its member `array`.

    Every other member is a record {NAME: value} of its own. Where the document cannot be read
    further, the report names the place.
    """
    number = 0
    try:
        with path.open("rb") as raw, unpacked(path, raw) as file:
            for number, record in enumerate(_Document(file).records(array), 1):
                if number % REPORT_EVERY == 0:
                    on_bytes(raw.tell())
                if isinstance(record, dict):
                    yield f"{path}:{number}", record
                else:
                    found = type(record).__name__
                    report.add_broken(f"{path}:{number}", f"an object is expected, not {found}")
    except (ValueError, RecursionError) as error:
        report.add_broken(f"{path}:{number + 1}", f"not JSON: {error}")
    except (OSError, EOFError, zlib.error) as error:
        report.add_broken(f"{path}:{number + 1}", f"cannot be read further: {error}")


class _Document:
    """A position in a JSON text of which only a part is in memory. Raises ValueError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._json = json.JSONDecoder()
        self._text, self._at, self._is_whole = "", 0, False

    def records(self, array: str) -> Iterator[Any]:
        if self._peek() == "[":
            yield from self._elements()
            return
        self._expect("{")
        while self._peek() != "}":
            name = self._value()
            self._expect(":")
            if name == array and self._peek() == "[":
                yield from self._elements()
            else:
                yield {str(name): self._value()}
            if self._peek() != "}":
                self._expect(",")

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        while self._peek() != "]":
            yield self._value()
            if self._peek() != "]":
                self._expect(",")
        self._expect("]")

    def _value(self) -> Any:
        """The value at the position. It may go on beyond the buffer, even if it looks whole."""
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if self._is_whole or len(self._text) - self._at > MAX_VALUE_CHARS:
                    raise
            else:
                if end < len(self._text) or self._is_whole:
                    is_odd = "\\ud" in self._text[self._at : end].lower()
                    self._at = end
                    return without_lone_surrogates(value) if is_odd else value
            self._read_more()

    def _peek(self) -> str:
        """The next character that is no space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_whole:
                raise ValueError("the document ends too early")
            self._read_more()

    def _expect(self, character: str) -> None:
        if (found := self._peek()) != character:
            raise ValueError(f"{character} is expected, not {found!r}")
        self._at += 1

    def _read_more(self) -> None:
        """Twice as much as is left: the attempts at a large value stay few."""
        left = self._text[self._at :]
        data = self._file.read(max(_CHUNK, len(left)))
        self._is_whole = not data
        self._text, self._at = left + self._characters.decode(data, final=not data), 0
