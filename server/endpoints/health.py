"""`GET /health` (is the server alive?) and `GET /ready` (will it take a request now?)."""

from __future__ import annotations

import math

from aiohttp import web

from rtcore.failure import error_of
from server.errors import encode
from server.protocol.common import EngineHealth
from server.service import SERVICE, Service


async def health(request: web.Request) -> web.Response:
    """200 while the server lives, also while it restarts its engine; 503 when that fails again and again."""
    service = request.app[SERVICE]
    failed = service.engine.state == "failed"
    return _answer(service, "failing" if failed else "ok", 503 if failed else 200)


async def ready(request: web.Request) -> web.Response:
    """200 when a request would be taken, else 503 with Retry-After and the reason."""
    service = request.app[SERVICE]
    up = service.engine.state == "ready"
    return _answer(service, "ready" if up else "not ready", 200 if up else 503)


def _answer(service: Service, status: str, code: int) -> web.Response:
    engine = service.engine
    if engine.state == "draining":
        reason: str | None = "The server is shutting down."
    else:
        reason = None if engine.reason is None or engine.state == "ready" else str(error_of(engine.reason))
    headers = {} if code == 200 else {"Retry-After": str(math.ceil(engine.retry_after))}
    body = encode(EngineHealth(status, engine.state, engine.restarts, engine.in_flight, reason))
    return web.Response(status=code, body=body, content_type="application/json", headers=headers)
