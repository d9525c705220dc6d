"""A turn is complete when its session's next request is seen: only then is its wait known.

So each session has at most one open turn. Bounded: beyond MAX_OPEN sessions of one file the one
that is open longest counts as ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from .turns import Turn

MAX_OPEN = 10_000
MAX_NUMBERED = 100_000
"""Sessions whose turns go on counting in the next file."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Bounded(OrderedDict[_Key, _Value], Generic[_Key, _Value]):
    """A dictionary that forgets its oldest entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)


class Chains:
    def __init__(self) -> None:
        self._open: OrderedDict[str, Turn] = OrderedDict()
        self._numbers: Bounded[str, int] = Bounded(MAX_NUMBERED)

    def open_turn(self, session: str) -> Turn | None:
        return self._open.get(session)

    def begin(self, turn: Turn) -> Iterator[Turn]:
        """Opens a turn; gives the one before it in its session."""
        turn.number = self._numbers.get(turn.session, 0)
        self._numbers[turn.session] = turn.number + 1
        yield from self.close(turn.session, turn.requested_at)
        self._open[turn.session] = turn
        if len(self._open) > MAX_OPEN:
            yield self._open.popitem(last=False)[1]

    def close(self, session: str, requested_at: float) -> Iterator[Turn]:
        """Gives the session's open turn, if there is one: the next request came."""
        turn = self._open.pop(session, None)
        if turn is not None:
            turn.after = "tool" if turn.calls else "human"
            turn.reuse_s = requested_at - turn.ended_at
            yield turn

    def finish(self) -> Iterator[Turn]:
        """Gives all open turns: no request followed them."""
        while self._open:
            yield self._open.popitem(last=False)[1]
