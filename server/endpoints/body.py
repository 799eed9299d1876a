"""Reading a request's body within bounds of size and time."""

from __future__ import annotations

import asyncio

from aiohttp import http_exceptions, web

from server.connections import first_line
from server.record import RECORD
from server.service import SERVICE

JSON = "application/json"


async def read_json_body(request: web.Request) -> bytes:
    """The bytes of a JSON body.

    Raises HTTPUnsupportedMediaType, HTTPRequestEntityTooLarge (also for a body that unpacks to too much),
    HTTPRequestTimeout for one that does not arrive in time and HTTPBadRequest for one that cannot be unpacked or
    put together.
    """
    config = request.app[SERVICE].config
    if request.content_type != JSON:
        raise web.HTTPUnsupportedMediaType(
            text=f"The body must be JSON: send the header Content-Type: {JSON}, not {request.content_type[:100]!r}."
        )
    if request.content_length is not None and request.content_length > config.max_body_bytes:
        raise web.HTTPRequestEntityTooLarge(config.max_body_bytes, request.content_length)
    try:
        async with asyncio.timeout(config.body_timeout):
            body = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"The body did not arrive within {config.body_timeout:g} s.") from None
    except web.RequestPayloadError as error:
        cause = error.__cause__ if isinstance(error.__cause__, http_exceptions.HttpProcessingError) else None
        reason = first_line(cause.message if cause is not None else str(error))
        raise web.HTTPBadRequest(text=f"The body cannot be read: {reason}.") from error
    if config.log_prompts:
        request[RECORD].logged["body"] = body.decode(errors="replace")
    return body
