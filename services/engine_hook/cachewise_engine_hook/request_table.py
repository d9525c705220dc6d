"""Which session each request in the engine is of. Requests without a session id are not in it."""

from __future__ import annotations

from collections.abc import Collection


class RequestTable:
    """Requests by their ids, sessions by their keys."""

    def __init__(self) -> None:
        self._session: dict[str, str] = {}
        self._requests: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._session)

    def add(self, request_id: str, session: str) -> None:
        self._session[request_id] = session
        self._requests.setdefault(session, set()).add(request_id)

    def session(self, request_id: str) -> str | None:
        return self._session.get(request_id)

    def of(self, session: str) -> Collection[str]:
        """The session's requests."""
        return self._requests.get(session, ())

    def remove(self, request_id: str) -> None:
        """It has given its blocks back for good."""
        session = self._session.pop(request_id)
        requests = self._requests[session]
        requests.discard(request_id)
        if not requests:
            del self._requests[session]
