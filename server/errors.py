"""The one place where typed errors become HTTP statuses and OpenAI's error bodies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from aiohttp import web

from ops import errors
from ops.errors import OrtolanError
from server.protocol.common import ErrorBody, ErrorDetail
from server.protocol.decoding import UnknownField

INVALID = "invalid_request_error"
SERVER = "server_error"


@dataclass(frozen=True)
class Answer:
    """What a class of errors is answered with: the HTTP status, and OpenAI's type and code."""

    status: int
    type: str
    code: str | None


ANSWERS: tuple[tuple[type[OrtolanError], Answer], ...] = (
    (UnknownField, Answer(400, INVALID, "unknown_parameter")),
    (errors.UnsupportedParameter, Answer(400, INVALID, "unsupported_parameter")),
    (errors.ContextLengthExceeded, Answer(400, INVALID, "context_length_exceeded")),
    (errors.UnknownModel, Answer(404, INVALID, "model_not_found")),
    (errors.InvalidRequest, Answer(400, INVALID, "invalid_value")),
    (errors.CacheTooSmall, Answer(400, INVALID, "cache_too_small")),
    (errors.DeadlineUnreachable, Answer(503, SERVER, "deadline_unreachable")),
    (errors.DeadlineExceeded, Answer(504, SERVER, "deadline_exceeded")),
    (errors.Overloaded, Answer(503, SERVER, "overloaded")),
    (errors.EngineUnavailable, Answer(503, SERVER, "engine_unavailable")),
    (errors.EngineDied, Answer(503, SERVER, "engine_died")),
    (OrtolanError, Answer(500, SERVER, "engine_error")),
)
"""First match wins, so subclasses come first."""

HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
}
DIED_RETRY_SECONDS = 2.0

encode = msgspec.json.Encoder().encode


def answer_to(error: OrtolanError) -> Answer:
    """The status, type and code of an error."""
    return next(answer for kind, answer in ANSWERS if isinstance(error, kind))


def error_body(error: OrtolanError) -> bytes:
    """OpenAI's error body, also the data of an error event within a stream."""
    answer = answer_to(error)
    return encode(ErrorBody(ErrorDetail(str(error), answer.type, error.param, answer.code)))


def error_response(error: OrtolanError) -> web.Response:
    """The response to an error, with Retry-After where trying again can help."""
    answer = answer_to(error)
    headers = {}
    if answer.status == 503:
        seconds = getattr(error, "retry_after", DIED_RETRY_SECONDS)
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    return web.Response(
        status=answer.status, body=error_body(error), content_type="application/json", headers=headers
    )


def http_error_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """The response to what is wrong with HTTP itself: path, method, size, media type."""
    kind = INVALID if status < 500 else SERVER
    body = encode(ErrorBody(ErrorDetail(message, kind, None, HTTP_CODES.get(status, "internal_error"))))
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
