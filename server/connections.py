"""What goes wrong on connections before or after a request is handled: HTTP that is none, clients that vanish."""

from __future__ import annotations

import logging

from aiohttp import hdrs, http_exceptions, web

from server.errors import http_error_response

logger = logging.getLogger("ortolan.server")

_CONTINUE = "100-continue"


class ClientFaults(logging.Filter):
    """Keeps what clients did wrong from looking like errors of the server.

    aiohttp logs a trace for every malformed request and for every client that leaves while it is written to.
    The first becomes one line here; the second has its line as a request already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError | web.RequestPayloadError):
            return False
        if isinstance(error, http_exceptions.HttpProcessingError):
            logger.info("malformed request", extra={"status": error.code, "error": first_line(error.message)})
            return False
        return True


def connection_logger() -> logging.Logger:
    """aiohttp's logger, less the faults of clients."""
    found = logging.getLogger("ortolan.http")
    if not any(isinstance(entry, ClientFaults) for entry in found.filters):
        found.addFilter(ClientFaults())
    return found


def first_line(message: str) -> str:
    """The reason in aiohttp's words, without the bytes of the client that may follow it."""
    return message.strip().partition("\n")[0].rstrip(":.")


async def answer_expect(request: web.Request) -> web.StreamResponse | None:
    """Let a client that asks first send its body; any other expectation is refused (RFC 9110, section 10.1.1)."""
    if request.version < (1, 1):
        return None
    if request.headers[hdrs.EXPECT].lower() != _CONTINUE:
        return http_error_response(417, f"The header Expect may say {_CONTINUE} only.")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None
