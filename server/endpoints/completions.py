"""`POST /v1/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from server.endpoints.body import read_json_body
from server.endpoints.reply import Reply, json_response, stream_events
from server.generation import Choice, Generation, check_choices
from server.protocol.completions import Completion, CompletionChoice, CompletionRequest
from server.protocol.logprobs import CompletionLogprobs, completion_logprobs
from server.service import SERVICE, Service
from server.tenants import tenant_of

if TYPE_CHECKING:
    from rtcore.request import TokenLogprobs
    from rtcore.text.stream import TextDelta


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one or many prompts, whole or as a stream of events."""
    service = request.app[SERVICE]
    service.admit(None)
    body = await read_json_body(request)
    asked = await service.text_work(len(body), lambda: CompletionRequest.parse(body))
    service.admit(asked.model)
    params = service.params(asked.sampling_fields(), asked.answer_limit)
    terms = service.terms(asked.terms(), tenant_of(request, service.config.tenant_header))
    generation = await service.text_work(
        len(body),
        lambda: Generation(service, _prompts(service, asked, params.sequences), params, terms),
    )
    reply = CompletionReply(service, generation, asked)
    async with generation:
        if asked.stream:
            return await stream_events(request, reply)
        await generation.run()
    return await json_response(request, reply)


def _prompts(service: Service, asked: CompletionRequest, n: int) -> list[list[int]]:
    prompts = asked.prompts()
    check_choices(len(prompts), n)
    return [prompt if isinstance(prompt, list) else service.text.encode(prompt) for prompt in prompts]


class CompletionReply(Reply):
    """The shapes of one text completion."""

    def __init__(self, service: Service, generation: Generation, asked: CompletionRequest) -> None:
        super().__init__(
            service,
            generation,
            "cmpl",
            include_usage=asked.include_usage,
            wants_prompt=asked.prompt_logprobs is not None,
        )
        self._echoes = bool(asked.echo)

    def whole(self) -> Completion:
        choices = [
            CompletionChoice(
                choice.index,
                choice.text,
                choice.finish_reason,
                choice.stop_reason,
                self._logprobs(choice, choice.shown, choice.logprobs, choice.offsets, begins=True),
                self.prompt_field(choice),
            )
            for choice in self.generation.choices
        ]
        return Completion(*self.head, choices, self.generation.usage())

    def opening(self) -> list[Completion]:
        return []

    def delta(self, choice: Choice, delta: TextDelta) -> list[Completion]:
        count = delta.shown if self.wants_logprobs else 0
        if not (delta.text or count) and choice.finish_reason is None:
            return []
        ids, logprobs, offsets = delta.token_ids[:count], delta.logprobs[:count], delta.offsets[:count]
        new = CompletionChoice(
            choice.index,
            delta.text,
            choice.finish_reason,
            choice.stop_reason,
            self._logprobs(choice, ids, logprobs, offsets, begins=delta.begins),
        )
        return [self._chunk([new])]

    def _logprobs(
        self,
        choice: Choice,
        token_ids: list[int],
        logprobs: list[TokenLogprobs],
        offsets: list[int],
        *,
        begins: bool,
    ) -> CompletionLogprobs | None:
        """What is told of some tokens; of the echoed prompt's as well where the choice begins with them."""
        if not self.wants_logprobs:
            return None
        all_logprobs: list[TokenLogprobs | None] = [*logprobs]
        if self._echoes and begins:
            token_ids = [*choice.prompt, *token_ids]
            all_logprobs = [None, *self.generation.prompt_logprobs(choice), *logprobs]
            offsets = [*choice.stream.prompt_offsets, *offsets]
        return completion_logprobs(self.generation.tokenizer, token_ids, all_logprobs, offsets)

    def usage(self) -> Completion:
        return self._chunk([], last=True)

    def _chunk(self, choices: list[CompletionChoice], *, last: bool = False) -> Completion:
        return Completion(*self.head, choices, self.usage_field(last=last))
