"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from ops.errors import OrtolanError
from server.endpoints.body import read_json_body
from server.endpoints.reply import Reply, json_response, stream_events
from server.generation import Choice, Generation
from server.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    MessageDelta,
)
from server.protocol.logprobs import ChatLogprobs, chat_logprobs
from server.service import SERVICE, Service
from server.tenants import tenant_of

if TYPE_CHECKING:
    from rtcore.request import TokenLogprobs
    from rtcore.text.stream import TextDelta


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, whole or as a stream of events."""
    service = request.app[SERVICE]
    service.admit(None)
    body = await read_json_body(request)
    chat = await service.text_work(len(body), lambda: ChatRequest.parse(body))
    service.admit(chat.model)
    try:
        params = service.params(chat.sampling_fields(), chat.answer_limit)
        terms = service.terms(chat.terms(), tenant_of(request, service.config.tenant_header))
        generation = await service.text_work(
            len(body), lambda: Generation(service, [_prompt(service, chat)], params, terms)
        )
        reply = ChatReply(service, generation, chat)
        async with generation:
            if chat.stream:
                return await stream_events(request, reply)
            await generation.run()
    except OrtolanError as error:
        error.param = chat.param_names.get(error.param or "", error.param)
        raise
    return await json_response(request, reply)


def _prompt(service: Service, chat: ChatRequest) -> list[int]:
    return service.text.render_chat(chat.template_messages(), **chat.template_arguments())


class ChatReply(Reply):
    """The shapes of one chat completion."""

    def __init__(self, service: Service, generation: Generation, asked: ChatRequest) -> None:
        super().__init__(
            service,
            generation,
            "chatcmpl",
            include_usage=asked.include_usage,
            wants_prompt=asked.prompt_logprobs is not None,
        )

    def whole(self) -> ChatCompletion:
        choices = [
            ChatChoice(
                choice.index,
                AnswerMessage(choice.text),
                choice.finish_reason,
                choice.stop_reason,
                self._logprobs(choice.shown, choice.logprobs),
            )
            for choice in self.generation.choices
        ]
        prompt = self.prompt_field(self.generation.choices[0])
        return ChatCompletion(*self.head, choices, self.generation.usage(), prompt)

    def opening(self) -> list[ChatChunk]:
        return [
            self._chunk([ChunkChoice(choice.index, MessageDelta("assistant", ""))])
            for choice in self.generation.choices
        ]

    def delta(self, choice: Choice, delta: TextDelta) -> list[ChatChunk]:
        events = []
        count = delta.shown if self.wants_logprobs else 0
        if delta.text or count:
            logprobs = self._logprobs(delta.token_ids[:count], delta.logprobs[:count]) if count else None
            new = ChunkChoice(choice.index, MessageDelta(content=delta.text), logprobs=logprobs)
            events.append(self._chunk([new]))
        if choice.finish_reason is not None:
            last = ChunkChoice(choice.index, MessageDelta(), choice.finish_reason, choice.stop_reason)
            events.append(self._chunk([last]))
        return events

    def usage(self) -> ChatChunk:
        return self._chunk([], last=True)

    def _logprobs(self, token_ids: list[int], logprobs: list[TokenLogprobs]) -> ChatLogprobs | None:
        if not self.wants_logprobs:
            return None
        return chat_logprobs(self.generation.tokenizer, token_ids, logprobs)

    def _chunk(self, choices: list[ChunkChoice], *, last: bool = False) -> ChatChunk:
        return ChatChunk(*self.head, choices, self.usage_field(last=last))
