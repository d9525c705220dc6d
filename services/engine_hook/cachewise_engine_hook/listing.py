"""The scheduler's HTTP port: what it counts, what it has promised, what it has decided.

    /metrics      for Prometheus
    /claims       JSON: live claims, and the last events, the newest last
    /decisions    JSON: the sampled trace of decisions, the newest last
    ?session=     only those of one session, by its name or by its key (the name's hash)

EngineCore is a process of its own, so none of this can be served by vLLM's port. The server's
threads read what the scheduler's thread writes, without a lock: each reads a whole container by one
call that CPython does not interrupt (list of a deque, of a dict's values), and what it shows of the
elements never changes.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from cachewise_engine_hook.decisions import DecisionTrace
from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.retention import Retention

logger = logging.getLogger("vllm.cachewise.listing")

Wanted = Callable[[str], bool]
"""Whether a session's key is among those asked for."""
Listing = Callable[[Wanted], object]
"""What a path answers: something for JSON."""


def claims_listing(claims: Retention, now: Callable[[], float]) -> Listing:
    """now: the engine's clock, in seconds."""
    book = claims.book

    def answer(is_wanted: Wanted) -> object:
        at = now()
        live = [c for c in book.live() if is_wanted(c.session)]
        return {
            "protected_blocks": claims.queue.held,
            "most_blocks": book.limits.most_blocks,
            "live": [
                {
                    "session": c.session,
                    "blocks": c.blocks,
                    "tokens": c.tokens,
                    "age_s": at - c.made_at,
                    "ends_in_s": c.ends_at - at,
                }
                for c in live
            ],
            "events": _with_age(book.events, is_wanted, at),
        }

    return answer


def decisions_listing(trace: DecisionTrace | None, now: Callable[[], float]) -> Listing:
    """trace: None where it is off."""

    def answer(is_wanted: Wanted) -> object:
        noted = trace.decisions if trace is not None else ()
        return {"is_on": trace is not None, "decisions": _with_age(noted, is_wanted, now())}

    return answer


def serve(
    host: str, port: int, id_key: str, collector: Collector, listings: Mapping[str, Listing]
) -> None:
    """Opens the port; one that cannot be opened is reported, and the engine serves without.

    listings: by path. id_key: of the hash that makes session keys of names.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    application = _application(make_wsgi_app(registry), listings, id_key)
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

        class Server(ThreadingMixIn, WSGIServer):
            address_family = family
            daemon_threads = True

        server = make_server(host, port, application, Server, _SilentHandler)
    except OSError as error:
        logger.error(
            "metrics_port %d of %s cannot be opened (%s): the engine runs on without its metrics; "
            "choose a free port in cachewise.metrics_port",
            port,
            host,
            error,
        )
        return
    threading.Thread(target=server.serve_forever, name="cachewise-listing", daemon=True).start()


def _application(
    metrics: WSGIApplication, listings: Mapping[str, Listing], id_key: str
) -> WSGIApplication:
    paths = ["/metrics", *listings]

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return metrics(environ, start_response)
        if (listing := listings.get(path)) is None:
            return _json(start_response, "404 Not Found", {"paths": paths})
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _json(start_response, "405 Method Not Allowed", {"allow": "GET"})
        asked = parse_qs(environ.get("QUERY_STRING", "")).get("session", [])
        keys = {key for name in asked for key in (name, hash_session(name, id_key))}
        answer = listing(lambda session: not asked or session in keys)
        return _json(start_response, "200 OK", answer)

    return application


def _json(start_response: StartResponse, status: str, value: object) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(_finite(value), allow_nan=False).encode() + b"\n"]


def _with_age(noted: Iterable[Any], is_wanted: Wanted, at: float) -> list[dict[str, object]]:
    """Each with the seconds since then in place of a time of the engine's own clock."""
    entries = [asdict(entry) for entry in list(noted) if is_wanted(entry.session)]
    return [{"ago_s": at - entry.pop("at"), **entry} for entry in entries]


def _finite(value: Any) -> Any:
    """JSON has no infinity: a session that never comes back is wanted in null seconds."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a request is no event of the engine."""
