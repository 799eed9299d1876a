"""`/v1/completions`: the request, checked, and the shapes of its answers.

Source: OpenAI's API reference, "Completions"; the extra fields are vLLM's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ops.errors import InvalidRequest
from server.protocol.common import Usage
from server.protocol.decoding import decode_body
from server.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from server.protocol.sampling import NEUTRAL, SharedFields

DEFAULT_MAX_TOKENS = 16

COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "suffix": ("",),
    "add_special_tokens": (True,),
}

Prompt = str | list[int]


class CompletionRequest(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None

    suffix: Any = None
    add_special_tokens: Any = None

    @classmethod
    def parse(cls, body: bytes) -> CompletionRequest:
        """Decode and check a body; raises InvalidRequest naming the field."""
        request = decode_body(body, _decoder, cls)
        request.refuse_unsupported(COMPLETION_NEUTRAL)
        request.check_stream()
        if request.stream and request.best_of is not None and request.best_of > (request.n or 1):
            raise InvalidRequest(
                "best_of cannot be streamed.", why="Which are the best is known at the end.", param="best_of"
            )
        request.prompts()
        return request

    def prompts(self) -> list[Prompt]:
        """One or many prompts, each a text or token ids. Raises InvalidRequest for a mixed or empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        texts = [entry for entry in self.prompt if isinstance(entry, str)]
        ids = [entry for entry in self.prompt if isinstance(entry, int)]
        lists = [entry for entry in self.prompt if isinstance(entry, list)]
        if not self.prompt or [] in lists:
            raise InvalidRequest("prompt holds an empty list.", param="prompt")
        if len(self.prompt) not in (len(texts), len(ids), len(lists)):
            raise InvalidRequest(
                "prompt mixes texts, token ids and lists.",
                remedy="Send a string, a list of strings, a list of token ids, or a list of such lists.",
                param="prompt",
            )
        return [ids] if ids else [*texts, *lists]

    @property
    def answer_limit(self) -> int:
        """max_tokens of the engine's request."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def sampling_fields(self) -> dict[str, Any]:
        """With echo the prompt's tokens are told of as the answer's are."""
        given = super().sampling_fields()
        given |= {"best_of": self.best_of, "logprobs": self.logprobs, "echo": self.echo}
        if self.echo and self.logprobs is not None and self.prompt_logprobs is None:
            given["prompt_logprobs"] = self.logprobs
        return given


_decoder = msgspec.json.Decoder(CompletionRequest)


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, tag_field="object", tag="text_completion"):
    """The answer, and the shape of a stream's events, in which `usage` may be null or absent."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
