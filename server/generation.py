"""Generation: one HTTP request's sequences, from token ids in the engine to text."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ops.errors import EngineError, InvalidRequest
from rtcore.decoding.params import SamplingParams
from rtcore.process.stream import TokenStream
from server.protocol.common import Usage
from server.service import Service

if TYPE_CHECKING:
    from rtcore.request import EngineRequest, ServiceTerms, TokenLogprobs
    from rtcore.text.stream import TextDelta, TextStream

MAX_CHOICES = 512
"""Sequences that one HTTP request may ask for: prompts times n."""
MAX_LISTED = 1 << 22
"""Token ids that one HTTP request may list, for all its sequences together."""


def check_choices(prompts: int, n: int) -> None:
    """Raise InvalidRequest when a request asks for too many answers. To be called before prompts are encoded."""
    if prompts * n > MAX_CHOICES:
        raise InvalidRequest(
            f"The request asks for {prompts * n} answers.",
            why=f"One request may ask for {MAX_CHOICES}, prompts times n.",
            param="prompt" if prompts > n else "n",
        )


def check_lists(params: SamplingParams, sequences: int) -> None:
    """Raise InvalidRequest when the ids that a request lists, which each sequence gets, are too many together."""
    lists = (params.stop_token_ids, params.banned_token_ids, params.allowed_token_ids or (), params.logit_bias)
    listed = sum(map(len, lists)) + sum(map(len, params.bad_word_ids))
    if listed * sequences > MAX_LISTED:
        raise InvalidRequest(
            f"The request lists {listed} token ids for each of {sequences} answers.",
            why=f"One request may list {MAX_LISTED}, answers times ids, those of bad words among them.",
            param="n",
        )


class Choice:
    """One sequence: its text so far, what is told of its tokens, and why it ended.

    shown: ids of the tokens that stand for the text; logprobs and offsets: an entry for each of them, where
    log-probabilities were asked for. likelihood: of all tokens, as a logarithm.
    """

    def __init__(self, index: int, stream: TextStream, prompt: list[int]) -> None:
        self.index = index
        self.stream = stream
        self.prompt = prompt
        self.texts: list[str] = []
        self.tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.shown: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.offsets: list[int] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.likelihood = 0.0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def take(self, delta: TextDelta) -> None:
        self.texts.append(delta.text)
        self.tokens += len(delta.token_ids)
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.logprobs:
            self.shown += delta.token_ids[: delta.shown]
            self.logprobs += delta.logprobs[: delta.shown]
            self.offsets += delta.offsets[: delta.shown]
            self.likelihood += sum(told.logprob for told in delta.logprobs)


class Generation:
    """Runs all sequences of a request; use as an asynchronous context manager, which cancels what is left.

    id: a random part for the answer's id. params: of the request. choices: in the order of prompts, n of each, or
    best_of while they run.
    """

    def __init__(
        self,
        service: Service,
        prompts: list[list[int]],
        params: SamplingParams,
        terms: ServiceTerms,
    ) -> None:
        """Raises InvalidRequest or ContextLengthExceeded for a prompt that does not fit."""
        self.params = params
        self.tokenizer = service.text.tokenizer
        self._completion_tokens = 0
        self.id = uuid.uuid4().hex
        self._service = service
        self._prompt_tokens = sum(map(len, prompts))
        self._requests: list[EngineRequest] = []
        for number, prompt in enumerate(prompts):
            self._requests += service.text.requests(prompt, params, f"{self.id}-{number}", terms)
            check_lists(self._requests[-1].params, len(prompts) * params.sequences)
        self.choices = [
            Choice(index, service.text.stream(request), request.prompt_ids)
            for index, request in enumerate(self._requests)
        ]
        self._of_id = dict(zip((request.id for request in self._requests), self.choices, strict=True))
        size = params.sequences
        self._first = {id(choice): self.choices[place - place % size] for place, choice in enumerate(self.choices)}
        self._stream: TokenStream | None = None

    async def __aenter__(self) -> Generation:
        """Submit, and wait until the engine has taken every sequence; raises what it refuses them with."""
        self._stream = self._service.engine.stream_all(self._requests)
        try:
            await self._stream.accepted()
        except BaseException:
            await self._stream.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def deltas(self) -> AsyncGenerator[tuple[Choice, TextDelta], None]:
        """The new text of a choice, already added to it, as it comes; ends when all choices have finished.

        Raises EngineDied and other errors of the engine.
        """
        if self._stream is None:
            raise EngineError("The generation was not started.")
        async for tokens in self._stream:
            if tokens.finish_reason in ("cancelled", "error"):
                raise EngineError("The engine ended the request before it was finished.", remedy="Try again.")
            choice = self._of_id[tokens.id]
            delta = choice.stream.feed(tokens)
            choice.take(delta)
            self._completion_tokens += len(delta.token_ids)
            if delta.cut:
                self._stream.cancel(tokens.id)
            yield choice, delta

    async def run(self) -> None:
        """Run to the end; the choices then hold the whole text, and of best_of the best n are left."""
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass
        size, wanted = self.params.sequences, self.params.n
        if size > wanted:
            groups = [self.choices[begin : begin + size] for begin in range(0, len(self.choices), size)]
            self.choices = [
                choice
                for group in groups
                for choice in sorted(group, key=lambda choice: -choice.likelihood)[:wanted]
            ]
            for index, choice in enumerate(self.choices):
                choice.index = index

    @property
    def told(self) -> int:
        """How many log-probabilities the answer tells, those of other likely tokens among them."""
        told = [*(choice.logprobs for choice in self.choices), *(choice.prompt_logprobs for choice in self.choices)]
        return sum(1 + len(token.top_ids) for logprobs in told for token in logprobs)

    def prompt_logprobs(self, choice: Choice) -> list[TokenLogprobs]:
        """Of the tokens of a choice's prompt; without echo only the first sequence of a prompt is told them."""
        return choice.prompt_logprobs or self._first[id(choice)].prompt_logprobs

    def usage(self) -> Usage:
        """Tokens so far: prompts once each, and answers up to where their text ends, all of best_of."""
        completion = self._completion_tokens
        return Usage(self._prompt_tokens, completion, self._prompt_tokens + completion)
