"""TokenStream: the deltas of one or several requests, as their reader takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from ops.errors import OrtolanError
from rtcore.request import TokenDelta

Item = TypeVar("Item")


class TokenStream:
    """An asynchronous iterator over deltas; leaving it early with `aclose` cancels what still runs.

    What a slow reader has not taken is merged into one delta a request, so a stream never holds more than the
    tokens that its requests may generate. Iteration raises the typed error of a request that failed.
    """

    def __init__(self, ids: Iterable[str], cancel: Callable[[list[str]], None]) -> None:
        self._open = set(ids)
        self._unaccepted = set(self._open)
        self._cancel = cancel
        self._pending: dict[str, TokenDelta] = {}
        self._error: OrtolanError | None = None
        self._changed = asyncio.Event()
        self._closed = False

    async def accepted(self) -> None:
        """Wait until the engine has queued every request; raises its refusal (Overloaded, InvalidRequest, ...)."""
        while self._unaccepted and self._error is None:
            await self._wait()
        self._raise_error()

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenDelta:
        while True:
            if self._pending:
                delta = self._pending.pop(next(iter(self._pending)))
                if delta.finish_reason is not None:
                    self._open.discard(delta.id)
                return delta
            self._raise_error()
            if not self._open or self._closed:
                raise StopAsyncIteration
            await self._wait()

    def cancel(self, request_id: str) -> None:
        """End one request of the stream, whose remaining deltas are dropped; harmless when it has ended."""
        self._pending.pop(request_id, None)
        if request_id in self._open:
            self._open.discard(request_id)
            self._cancel([request_id])

    async def aclose(self) -> None:
        """Cancel what still runs and drop what was not read. Safe to call twice."""
        self._closed = True
        self._pending.clear()
        if self._open:
            self._cancel(list(self._open))
            self._open.clear()
        self._changed.set()

    def accept(self, request_id: str) -> None:
        """The engine has queued a request."""
        self._unaccepted.discard(request_id)
        if not self._unaccepted:
            self._changed.set()

    def feed(self, delta: TokenDelta) -> None:
        """Add a delta of the engine, behind what the reader has not taken."""
        if self._closed or delta.id not in self._open:
            return
        self._unaccepted.discard(delta.id)
        waiting = self._pending.get(delta.id)
        if waiting is None:
            self._pending[delta.id] = delta
        else:
            self._pending[delta.id] = msgspec.structs.replace(
                delta,
                token_ids=_joined(waiting.token_ids, delta.token_ids),
                logprobs=_joined(waiting.logprobs, delta.logprobs),
                prompt_logprobs=_joined(waiting.prompt_logprobs, delta.prompt_logprobs),
            )
        self._changed.set()

    def fail(self, error: OrtolanError) -> None:
        """End the stream with an error, after what is still to be read."""
        self._error = error
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _joined(first: list[Item], second: list[Item]) -> list[Item]:
    """Both lists, in the first one's memory, which nobody else holds."""
    if first:
        first.extend(second)
        return first
    return second
