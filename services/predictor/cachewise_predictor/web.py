"""HTTP for people and machines: health, metrics, and what the model knows.

/healthz    the process runs
/readyz     it serves; the body says whether it does so with the store or from memory
/metrics    for Prometheus
/v1/model   version, samples, and the quantiles of the groups with the most samples
/           the same as a page
"""

from __future__ import annotations

import contextlib
import html
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .config import Address
from .errors import ConfigError
from .events import ToolCall
from .model import Model
from .service import Predictor

MOST_GROUPS = 500


@dataclass
class Status:
    """What /readyz says; set by the composition root."""

    is_serving: bool = False


@dataclass(frozen=True)
class GroupSummary:
    """One row of /v1/model. tenant None: all; tool None: all tools, or a wait without one."""

    tenant: str | None
    wait: str
    tool: str | None
    n: int
    p50_s: float
    p90_s: float
    p99_s: float


def make_app(predictor: Predictor, status: Status, is_store_up: Callable[[], bool]) -> FastAPI:
    app = FastAPI(title="CacheWise predictor", docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        body = {
            "status": "ready" if status.is_serving else "not serving",
            "store": "up" if is_store_up() else "down",
            "model": predictor.model.version,
        }
        return JSONResponse(body, status_code=200 if status.is_serving else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(predictor.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/model")
    async def model() -> dict[str, object]:
        model = predictor.model
        groups = [asdict(group) for group in summarise(model)]
        return {"version": model.version, "samples": model.samples, "groups": groups}

    @app.get("/", response_class=HTMLResponse)
    async def page() -> str:
        return _page(predictor.model)

    return app


def summarise(model: Model, most: int = MOST_GROUPS) -> list[GroupSummary]:
    """The groups of the model, largest first; the prior's if it has none."""
    whole = [(group, row) for group, row in model.rows.items() if group.part is None]
    rows = sorted(whole, key=lambda item: -item[1].samples)[:most]
    summaries = []
    for group, row in rows:
        calls = () if group.kind is None else (ToolCall(group.kind),)
        waits = [q.wait_s for q in model.forecast(group.tenant or "", group.wait, calls).quantiles]
        summaries.append(
            GroupSummary(group.tenant, group.wait.value, group.kind, row.samples, *waits)
        )
    return summaries


class WebServer:
    """uvicorn inside our own event loop, with our own socket and without its signal handlers."""

    def __init__(self, app: FastAPI, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            # From now on connections wait for `run`, which comes when all else is ready.
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"--http: cannot listen on {address}: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level=logging.WARNING, access_log=False, lifespan="off")
        self._server = _Uvicorn(config)

    async def run(self) -> None:
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Lets `run` return."""
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _page(model: Model) -> str:
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td>{html.escape(str(cell))}</td>"
            for cell in (
                "all" if group.tenant is None else group.tenant,
                group.wait,
                group.tool or "",
                group.n,
            )
        )
        + "".join(f"<td>{wait:,.2f}</td>" for wait in (group.p50_s, group.p90_s, group.p99_s))
        + "</tr>"
        for group in summarise(model)
    )
    return _PAGE.format(version=html.escape(model.version), samples=model.samples, rows=rows)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>CacheWise predictor</title>
<style>
body {{ font: 15px system-ui, sans-serif; margin: 2rem; color: #222; }}
td, th {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
td:nth-child(-n+3), th:nth-child(-n+3) {{ text-align: left; }}
</style></head><body>
<h1>CacheWise predictor</h1>
<p>Model {version}, {samples} intervals. Waits in seconds.</p>
<table>
<tr><th>tenant</th><th>wait for</th><th>tool</th><th>n</th><th>P50</th><th>P90</th><th>P99</th></tr>
{rows}
</table></body></html>
"""
