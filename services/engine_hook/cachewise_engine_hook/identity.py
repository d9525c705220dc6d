"""Which session a request belongs to: one table of sources, the first that names a session wins.

The name becomes vLLM's `Request.session_id`: vLLM takes a chat completion's body `session_id` first
and the header `X-Session-ID` second, so a name from any other source travels in that header, which
the middleware sets. A name that no header can carry (over 256 bytes, or not printable ASCII) is
replaced by its BLAKE2b hash. Before a name leaves the process it is hashed with the fleet's key
(`hash_session`): the middleware's events and the engine's announcements hash the same name, so
they meet at the predictor.

A subagent is a session of its own: its agent id is appended to the name that a header or the
metadata gives.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

MAX_NAME_BYTES = 256
MAX_USER_ID_CHARS = 4096

SESSION_HEADER = "x-session-id"
CLAUDE_CODE_SESSION_HEADER = "x-claude-code-session-id"
CLAUDE_CODE_AGENT_HEADER = "x-claude-code-agent-id"

_CLAUDE_CODE_USER_ID = re.compile(
    r"_session_([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$"
)

Headers = Mapping[str, str]
Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Session:
    """name: as vLLM's Request.session_id will hold it. source: a name of SOURCES."""

    name: str
    source: str

    @property
    def header(self) -> bytes | None:
        """What X-Session-ID must hold; None if no header can carry the name (it is in the body)."""
        return self.name.encode("ascii") if _fits_a_header(self.name) else None


def resolve_session(
    headers: Iterable[tuple[bytes, bytes]], body: Body, *, vllm_reads_body: bool = True
) -> Session | None:
    """The session that an HTTP request belongs to; None if it does not say.

    headers: as in an ASGI scope. body: see read_body. vllm_reads_body: on this path vLLM itself
    takes the session from the body, so that name must stay as it is (true of chat completions,
    false of Anthropic messages).
    """
    named = _wanted_headers(headers)
    for source, find in SOURCES:
        if name := find(named, body):
            if source == "body session_id":
                return Session(name if vllm_reads_body else _for_header(name), source)
            agent = named.get(CLAUDE_CODE_AGENT_HEADER)
            return Session(_for_header(f"{name}/{agent}" if agent else name), source)
    return None


def read_body(data: bytes) -> Body:
    """The parts of a JSON request body that name a session or hold hints; the rest is checked but
    not built.

    Raises ValueError or RecursionError if the body is no JSON object.
    """
    fields = _BODY_DECODER.decode(data)
    return {"session_id": fields.session_id, "metadata": fields.metadata, "nvext": fields.nvext}


def hash_session(name: str, key: str) -> str:
    """What stands for the session on the wire: 32 hex digits, equal wherever the key is."""
    key_bytes = key.encode("utf-8", "surrogatepass")[: hashlib.blake2b.MAX_KEY_SIZE]
    name_bytes = name.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name_bytes, key=key_bytes, digest_size=16).hexdigest()


class _BodyFields(msgspec.Struct):
    session_id: object = None
    metadata: object = None
    nvext: object = None


_BODY_DECODER = msgspec.json.Decoder(_BodyFields)


def _body_session_id(headers: Headers, body: Body) -> str:
    value = body.get("session_id")
    return value if isinstance(value, str) else ""


def _session_header(headers: Headers, body: Body) -> str:
    value = headers.get(SESSION_HEADER, "")
    return "" if _is_aibrix_pod_address(value) else value


def _claude_code_header(headers: Headers, body: Body) -> str:
    return headers.get(CLAUDE_CODE_SESSION_HEADER, "")


def _metadata_user_id(headers: Headers, body: Body) -> str:
    """Claude Code packs its session into Anthropic's field: `…_session_<uuid>`, later as JSON."""
    metadata = body.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user_id, str) or len(user_id) > MAX_USER_ID_CHARS:
        return ""
    if match := _CLAUDE_CODE_USER_ID.search(user_id):
        return match.group(1)
    try:
        packed = json.loads(user_id)
    except (ValueError, RecursionError):
        return ""
    session_id = packed.get("session_id") if isinstance(packed, Mapping) else None
    return session_id if isinstance(session_id, str) else ""


SOURCES: tuple[tuple[str, Callable[[Headers, Body], str]], ...] = (
    ("body session_id", _body_session_id),
    ("X-Session-ID", _session_header),
    ("x-claude-code-session-id", _claude_code_header),
    ("metadata.user_id", _metadata_user_id),
)
"""In order of precedence. Each gives the session's name, or "" if it has none to give."""


def _wanted_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that can name a session, decoded as Starlette does; the first of each counts."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower().decode("latin-1")
        if key in (SESSION_HEADER, CLAUDE_CODE_SESSION_HEADER, CLAUDE_CODE_AGENT_HEADER):
            found.setdefault(key, value.decode("latin-1").strip())
    return found


def _for_header(name: str) -> str:
    if _fits_a_header(name):
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _fits_a_header(name: str) -> bool:
    return name.isascii() and name.isprintable() and len(name) <= MAX_NAME_BYTES


def _is_aibrix_pod_address(value: str) -> bool:
    """AIBrix' router sends x-session-id = base64("ip:port") of a pod: all sessions would be one."""
    try:
        host, _, port = base64.b64decode(value, validate=True).decode("ascii").rpartition(":")
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return port.isdigit()
