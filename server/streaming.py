"""EventStream: server-sent events to one client, with bounds on how long a slow reader may hold it up.

Source: WHATWG HTML, "Server-sent events"; the closing `[DONE]` is OpenAI's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Self

import msgspec
from aiohttp import web

from ops.errors import OrtolanError
from server.errors import encode, error_body


class ReaderStalled(ConnectionError):
    """The client did not read for longer than it may; its connection was cut."""


class EventStream:
    """Writes events as `data:` lines. Writing waits while the client does not read: what its request still
    generates is merged by the engine's client meanwhile, so nothing grows without bound."""

    def __init__(self, response: web.StreamResponse, request: web.Request, write_timeout: float) -> None:
        self._response = response
        self._request = request
        self._write_timeout = write_timeout

    @classmethod
    async def open(cls, request: web.Request, write_timeout: float) -> Self:
        """Send status 200 and the headers; errors from here on are events."""
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return cls(response, request, write_timeout)

    async def send(self, *events: msgspec.Struct) -> None:
        """Send events in one write. Raises ConnectionError when the client is gone or stalls."""
        data = b"".join(b"data: " + encode(event) + b"\n\n" for event in events)
        await self._within_timeout(self._response.write(data))

    async def done(self) -> web.StreamResponse:
        """Send the closing event and end the response."""
        return await self._end(b"data: [DONE]\n\n")

    async def fail(self, error: OrtolanError) -> web.StreamResponse:
        """Send an error event in OpenAI's shape and end the response, without `[DONE]`."""
        return await self._end(b"data: " + error_body(error) + b"\n\n")

    async def _end(self, data: bytes) -> web.StreamResponse:
        await self._within_timeout(self._response.write(data))
        await self._within_timeout(self._response.write_eof())
        return self._response

    async def _within_timeout(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ReaderStalled(f"The client did not read for {self._write_timeout:g} s.") from None
