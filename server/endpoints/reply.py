"""What chat and text completions share in answering: the stream of events and the whole body."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from ops.errors import OrtolanError
from server.errors import encode
from server.generation import Choice, Generation
from server.protocol.common import Usage
from server.protocol.logprobs import PromptLogprobs, prompt_logprobs
from server.record import RECORD
from server.service import SERVICE, Service
from server.streaming import EventStream

if TYPE_CHECKING:
    from rtcore.text.stream import TextDelta

_LOGPROB_BYTES = 64
"""About what a log-probability and its token take in a body."""


class Reply(ABC):
    """The shapes that one generation is answered in.

    head: id, time, model and version, alike in all of them. wants_logprobs, wants_prompt: whether the request asked
    for log-probabilities of the answer's and of the prompt's tokens.
    """

    def __init__(
        self, service: Service, generation: Generation, prefix: str, *, include_usage: bool, wants_prompt: bool
    ) -> None:
        self.generation = generation
        self.include_usage = include_usage
        self.wants_logprobs = generation.params.logprobs is not None
        self.wants_prompt = wants_prompt
        self.head = (f"{prefix}-{generation.id}", int(time.time()), service.model, service.manifest.version)

    @abstractmethod
    def whole(self) -> msgspec.Struct:
        """The whole answer, when the generation has run."""

    @abstractmethod
    def opening(self) -> Sequence[msgspec.Struct]:
        """Events before any text."""

    @abstractmethod
    def delta(self, choice: Choice, delta: TextDelta) -> Sequence[msgspec.Struct]:
        """Events for what is new of a choice, and for its end."""

    @abstractmethod
    def usage(self) -> msgspec.Struct:
        """The last event, with the counts and no choices."""

    def prompt_field(self, choice: Choice) -> PromptLogprobs | msgspec.UnsetType:
        """`prompt_logprobs` of a choice's prompt: absent unless asked for."""
        if not self.wants_prompt:
            return msgspec.UNSET
        return prompt_logprobs(self.generation.tokenizer, choice.prompt, self.generation.prompt_logprobs(choice))

    def usage_field(self, *, last: bool) -> Usage | msgspec.UnsetType | None:
        """`usage` of an event: absent unless asked for, null in all but the last."""
        if not self.include_usage:
            return msgspec.UNSET
        return self.generation.usage() if last else None


async def stream_events(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Send a generation, already accepted by the engine, as events; an error becomes the last one."""
    events = await EventStream.open(request, request.app[SERVICE].config.write_timeout)
    try:
        opening = reply.opening()
        if opening:
            await events.send(*opening)
        async with contextlib.aclosing(reply.generation.deltas()) as deltas:
            async for choice, delta in deltas:
                chunk = reply.delta(choice, delta)
                if chunk:
                    await events.send(*chunk)
        if reply.include_usage:
            await events.send(reply.usage())
        return await events.done()
    except OrtolanError as error:
        request[RECORD].logged["error"] = str(error)
        return await events.fail(error)
    finally:
        note_usage(request, reply)


async def json_response(request: web.Request, reply: Reply) -> web.Response:
    """The whole answer as one body."""
    note_usage(request, reply)
    service = request.app[SERVICE]
    body = await service.text_work(reply.generation.told * _LOGPROB_BYTES, lambda: encode(reply.whole()))
    return web.Response(body=body, content_type="application/json")


def note_usage(request: web.Request, reply: Reply) -> None:
    """Add the counts to the request's log line."""
    usage = reply.generation.usage()
    request[RECORD].logged |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
