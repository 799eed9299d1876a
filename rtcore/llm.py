"""LLM: the offline API. It drives an engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ops.errors import InvalidRequest, OrtolanError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.loading import load_engine
from rtcore.manifest import Manifest
from rtcore.offline import Batch, Driver
from rtcore.output import RequestOutput
from rtcore.request import ServiceTerms
from rtcore.text.chat import Message
from rtcore.text.frontend import TextFrontend

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None
Conversation = Sequence[Message]


class LLM:
    """A model, loaded from a bundle, that generates text.

        with LLM("smollm2.ortolan") as llm:
            outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))
            print(outputs[0].outputs[0].text)

    Use it from one thread. Several streams may be open at once; they then run in the same steps.
    """

    def __init__(self, bundle: str | Path, precision: str | None = None, **config: Any) -> None:
        """bundle: its directory. precision: None for the bundle's default. config: the fields of EngineConfig.

        Raises ConfigError, NotABundle, BundleDamaged, BundleTooNew, WrongTarget, CacheTooSmall or MissingExtra.
        """
        settings = EngineConfig.of({**config, "precision": precision})
        engine = load_engine(bundle, settings)
        try:
            with Bundle.open(bundle, check="sizes") as opened:
                frontend = TextFrontend(opened, cache_tokens=engine.context_length)
        except BaseException:
            engine.close()
            raise
        self._attach(engine, frontend, settings.max_batch_delay_ms / 1000)

    @classmethod
    def over(cls, engine: Engine, frontend: TextFrontend) -> Self:
        """An LLM over parts that are loaded already; closing it closes the engine."""
        llm = cls.__new__(cls)
        llm._attach(engine, frontend)
        return llm

    def _attach(self, engine: Engine, frontend: TextFrontend, delay: float = 0.0) -> None:
        self._driver = Driver(engine, delay)
        self._frontend = frontend
        self._requests = 0

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._driver.engine.manifest

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together here."""
        return self._driver.engine.context_length

    @property
    def frontend(self) -> TextFrontend:
        """Tokenizer and chat template. Raises EngineUnavailable after close."""
        self._driver.check_open()
        return self._frontend

    def default_params(self, **given: Any) -> SamplingParams:
        """The model's own sampling parameters, less what is given (None counts as not given)."""
        return self._frontend.default_params(**given)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, terms: ServiceTerms | None = None
    ) -> list[RequestOutput]:
        """Complete prompts, each a text or a list of token ids; the outputs are in the order of the prompts.

        params: one for all, one for each, or None for the model's own. terms: priority, tenant, timeouts and what
        is cached, for all prompts. All prompts are checked before the first runs. Raises InvalidRequest,
        ContextLengthExceeded or CacheTooSmall for the first that is wrong, and EngineError where the engine fails.
        An interrupt cancels everything.
        """
        return _finish(self._batch(self._plain(prompts), params, terms))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        terms: ServiceTerms | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation or several; as `generate`, over the model's chat template.

        A message is a mapping with role and content. chat_template_kwargs: more variables for the template.
        """
        return _finish(
            self._batch(self._rendered(messages, tools, add_generation_prompt, chat_template_kwargs), params, terms)
        )

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        delta: bool = False,
        terms: ServiceTerms | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete prompts as `generate` does, and give an output whenever a prompt has grown.

        Each output holds all that the prompt's sequences have so far, as vLLM's streams do; with `delta` it
        holds the one sequence that grew, and only what was added. Outputs of several prompts interleave:
        `index` tells them apart. Prompts are checked at once; closing the iterator cancels what still runs.
        """
        return _increments(self._batch(self._plain(prompts), params, terms, streamed=True), delta)

    def stream_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        *,
        delta: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        terms: ServiceTerms | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer conversations as `chat` does, and give outputs as `stream` does."""
        rendered = self._rendered(messages, tools, add_generation_prompt, chat_template_kwargs)
        return _increments(self._batch(rendered, params, terms, streamed=True), delta)

    def close(self) -> None:
        """Give back the engine and its memory. Safe to call twice; any other use then raises EngineUnavailable."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _plain(self, prompts: Prompt | Sequence[Prompt]) -> list[tuple[str | None, list[int]]]:
        """Each prompt as text, where it was given so, and ids."""
        encoded: list[tuple[str | None, list[int]]] = []
        for prompt in _listed(prompts):
            if isinstance(prompt, str):
                encoded.append((prompt, self._frontend.encode(prompt)))
            elif isinstance(prompt, Sequence) and all(type(token) is int for token in prompt):
                encoded.append((None, list(prompt)))
            else:
                raise InvalidRequest(
                    f"A prompt is {type(prompt).__name__}, not a text or a list of token ids.", param="prompt"
                )
        return encoded

    def _rendered(
        self,
        messages: Conversation | Sequence[Conversation],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> list[tuple[str | None, list[int]]]:
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        texts = [
            self.frontend.chat.render(
                conversation, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
            )
            for conversation in conversations
        ]
        return [(text, self._frontend.encode_chat(text)) for text in texts]

    def _batch(
        self,
        prompts: list[tuple[str | None, list[int]]],
        params: Params,
        terms: ServiceTerms | None,
        *,
        streamed: bool = False,
    ) -> Batch:
        """Check all prompts and make a batch of them."""
        self._driver.check_open()
        batch = Batch(self._driver, self._frontend.tokenizer)
        for number, ((prompt, ids), chosen) in enumerate(
            zip(prompts, self._params(params, len(prompts)), strict=True)
        ):
            self._requests += 1
            if streamed and chosen.sequences > chosen.n:
                raise InvalidRequest(
                    "best_of cannot be streamed.", why="Which are the best is known at the end.", param="best_of"
                )
            try:
                requests = self._frontend.requests(
                    ids, chosen, f"offline-{self._requests}", terms or ServiceTerms()
                )
            except OrtolanError as error:
                if len(prompts) > 1:
                    error.what = f"Prompt {number}: {error.what}"
                raise
            batch.add(prompt, chosen, [(request, self._frontend.stream(request)) for request in requests])
        return batch

    def _params(self, params: Params, count: int) -> list[SamplingParams]:
        """One for each prompt."""
        if params is None:
            params = self.default_params()
        if isinstance(params, SamplingParams):
            return [params] * count
        if len(params) != count:
            raise InvalidRequest(
                f"There are {count} prompts and {len(params)} sampling parameters.",
                remedy="Give one for all prompts or one for each.",
                param="params",
            )
        return list(params)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
    """The prompts as a sequence: a text, or a list of ids, is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(f"The prompts are {type(prompts).__name__}, not a text or a list.", param="prompt")
    return [prompts] if prompts and all(type(entry) is int for entry in prompts) else prompts


def _finish(batch: Batch) -> list[RequestOutput]:
    with closing(batch.run()) as steps:
        for _ in steps:
            pass
    return batch.outputs


def _increments(batch: Batch, delta: bool) -> Iterator[RequestOutput]:
    with closing(batch.run()) as steps:
        for added in steps:
            if delta:
                yield from added
            else:
                for index in dict.fromkeys(output.index for output in added):
                    yield _snapshot(batch.outputs[index])


def _snapshot(whole: RequestOutput) -> RequestOutput:
    outputs = [
        msgspec.structs.replace(
            output,
            token_ids=list(output.token_ids),
            logprobs=None if output.logprobs is None else list(output.logprobs),
        )
        for output in whole.outputs
    ]
    return msgspec.structs.replace(whole, outputs=outputs)
