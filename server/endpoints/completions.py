"""`POST /v1/completions`."""

from __future__ import annotations

from aiohttp import web

from server.endpoints.body import read_json_body
from server.endpoints.reply import Reply, json_response, stream_events
from server.generation import Choice, Generation, check_choices
from server.protocol.completions import Completion, CompletionChoice, CompletionRequest
from server.service import SERVICE, Service
from server.tenants import tenant_of


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
        len(body), lambda: Generation(service, _prompts(service, asked, params.n), params, terms)
    )
    reply = CompletionReply(service, generation, include_usage=asked.include_usage)
    async with generation:
        if asked.stream:
            return await stream_events(request, reply)
        await generation.run()
    return json_response(request, reply, reply.whole())


def _prompts(service: Service, asked: CompletionRequest, n: int) -> list[list[int]]:
    prompts = asked.prompts()
    check_choices(len(prompts), n)
    return [prompt if isinstance(prompt, list) else service.text.encode(prompt) for prompt in prompts]


class CompletionReply(Reply):
    """The shapes of one text completion."""

    def __init__(self, service: Service, generation: Generation, *, include_usage: bool) -> None:
        super().__init__(service, generation, "cmpl", include_usage=include_usage)

    def whole(self) -> Completion:
        choices = [
            CompletionChoice(choice.index, choice.text, choice.finish_reason, choice.stop_reason)
            for choice in self.generation.choices
        ]
        return Completion(*self.head, choices, self.generation.usage())

    def opening(self) -> list[Completion]:
        return []

    def delta(self, choice: Choice, text: str) -> list[Completion]:
        if not text and choice.finish_reason is None:
            return []
        return [self._chunk([CompletionChoice(choice.index, text, choice.finish_reason, choice.stop_reason)])]

    def usage(self) -> Completion:
        return self._chunk([], last=True)

    def _chunk(self, choices: list[CompletionChoice], *, last: bool = False) -> Completion:
        return Completion(*self.head, choices, self.usage_field(last=last))
