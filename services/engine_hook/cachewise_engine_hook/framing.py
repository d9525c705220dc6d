"""From the bytes of an HTTP response, in whatever chunks they come, to the JSON texts in them.

A whole body is one text. A stream of server-sent events has one per event: its `data:` lines,
joined; lines end with \\n or \\r\\n, events with an empty line, OpenAI's streams with
`[DONE]`. Bytes are split at line ends only, so a chunk may end inside a UTF-8 character.

Memory is bounded by MAX_TEXT_BYTES: a longer text is skipped, and `is_too_long` says so.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_TEXT_BYTES = 8 << 20


class WholeBody:
    """The whole body is one JSON text."""

    is_ended = False

    def __init__(self) -> None:
        self.is_too_long = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._size += len(data)
        if self._size > MAX_TEXT_BYTES:
            self.is_too_long = True
            self._parts.clear()
        else:
            self._parts.append(data)
        return iter(())

    def end(self) -> Iterator[bytes]:
        if not self.is_too_long:
            yield b"".join(self._parts)


class EventStream:
    """Server-sent events; `is_ended` once `[DONE]` has come."""

    def __init__(self) -> None:
        self.is_ended = False
        self.is_too_long = False
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._keep(part)
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line:
                yield from self._event()
        self._keep(rest)

    def end(self) -> Iterator[bytes]:
        """The last event of a stream that was cut before the empty line may be whole."""
        yield from self.feed(b"\n\n")

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_TEXT_BYTES:
            self.is_too_long = True
        else:
            self._line += part

    def _event(self) -> Iterator[bytes]:
        text, is_whole = b"\n".join(self._data), self._size <= MAX_TEXT_BYTES
        self._data.clear()
        self._size = 0
        if text == b"[DONE]":
            self.is_ended = True
        elif text and is_whole:
            yield text
