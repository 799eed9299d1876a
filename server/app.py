"""The aiohttp application: routes, request ids, the log line of each request, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from ops.errors import OrtolanError
from server.connections import answer_expect, connection_logger
from server.endpoints import chat, completions, health, models
from server.errors import answer_to, error_response, http_error_response
from server.record import RECORD, RequestRecord
from server.service import SERVICE, Service

logger = logging.getLogger("ortolan.server")

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[\w.:@/+=-]{1,128}", re.ASCII)
KEEPALIVE_SECONDS = 75.0
LAST_WRITES_SECONDS = 5.0
"""Time for answers that are done to reach their clients when the server ends."""
LINGERING_SECONDS = 1.0
"""Time in which the rest of a refused body is read, so that its sender sees the refusal and not a reset."""
CLIENT_GONE = 499
"""The status that is logged, as nginx does, for a client that left before its answer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_runner(service: Service) -> web.AppRunner:
    """The application with the server's ways: a client that leaves ends its request, idle connections close."""
    return web.AppRunner(
        build_app(service),
        handler_cancellation=True,
        access_log=None,
        logger=connection_logger(),
        keepalive_timeout=KEEPALIVE_SECONDS,
        shutdown_timeout=LAST_WRITES_SECONDS,
        lingering_time=LINGERING_SECONDS,
    )


def build_app(service: Service) -> web.Application:
    """The application around a service, whose engine need not be up yet."""
    app = web.Application(
        middlewares=[_log_requests, _answer_errors], client_max_size=service.config.max_body_bytes
    )
    app[SERVICE] = service
    app.on_response_prepare.append(_add_headers)
    app.router.add_post("/v1/chat/completions", chat.create_chat_completion, expect_handler=answer_expect)
    app.router.add_post("/v1/completions", completions.create_completion, expect_handler=answer_expect)
    app.router.add_get("/v1/models", models.list_models, expect_handler=answer_expect)
    app.router.add_get("/v1/models/{id:.+}", models.retrieve_model, expect_handler=answer_expect)
    app.router.add_get("/health", health.health, expect_handler=answer_expect)
    app.router.add_get("/ready", health.ready, expect_handler=answer_expect)
    return app


@web.middleware
async def _log_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each request an id, its client's if that is usable, and log one line when it has ended."""
    given = request.headers.get(REQUEST_ID, "")
    record = RequestRecord(given) if _USABLE_ID.fullmatch(given) else RequestRecord()
    request[RECORD] = record
    status = CLIENT_GONE
    try:
        response = await handler(request)
        status = response.status
        return response
    except ConnectionError as error:
        record.logged["error"] = str(error)
        raise
    finally:
        level = logging.DEBUG if request.path in ("/health", "/ready") else logging.INFO
        extra = {"request_id": record.id, "status": status, "ms": record.milliseconds, **record.logged}
        logger.log(level, "%s %s", request.method, request.path, extra=extra)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raises into OpenAI's error body."""
    try:
        return await handler(request)
    except OrtolanError as error:
        request[RECORD].logged["error"] = str(error)
        if answer_to(error).status == 500:
            logger.error("request failed: %s", error, extra={"request_id": request[RECORD].id})
        return error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _http_error(request, error)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        logger.exception("unforeseen error", extra={"request_id": request[RECORD].id})
        return http_error_response(
            500, f"The server failed in a way that it does not know. Its log has request {request[RECORD].id}."
        )


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's refusals in words; what they say in headers (Allow) is kept."""
    message = error.text or error.reason
    headers = {name: value for name, value in error.headers.items() if name.lower() == "allow"}
    if isinstance(error, web.HTTPNotFound):
        message = f"There is no {request.path[:200]} here. See /v1/models, /v1/chat/completions, /v1/completions."
    elif isinstance(error, web.HTTPMethodNotAllowed):
        message = f"{request.path[:200]} does not take {error.method[:20]}, only {headers.get('Allow', '')}."
    elif isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"The body is larger than the {request.app[SERVICE].config.max_body_bytes} bytes that are taken."
    response = http_error_response(error.status, message, headers)
    if isinstance(error, web.HTTPBadRequest | web.HTTPRequestEntityTooLarge | web.HTTPRequestTimeout):
        response.force_close()  # what is left of the body is not read
    return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    record = request.get(RECORD)
    if record is not None:  # HTTP that cannot be parsed has none
        response.headers[REQUEST_ID] = record.id
    response.headers["Server"] = "ortolan"
