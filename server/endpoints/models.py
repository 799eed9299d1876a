"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from aiohttp import web

from server.errors import encode
from server.protocol.common import ModelList
from server.service import SERVICE


async def list_models(request: web.Request) -> web.Response:
    """The models served here: one."""
    body = encode(ModelList([request.app[SERVICE].card()]))
    return web.Response(body=body, content_type="application/json")


async def retrieve_model(request: web.Request) -> web.Response:
    """The card of a model; the id may hold slashes. Raises UnknownModel."""
    service = request.app[SERVICE]
    service.check_model(request.match_info["id"])
    return web.Response(body=encode(service.card()), content_type="application/json")
