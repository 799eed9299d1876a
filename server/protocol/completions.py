"""`/v1/completions`: the request, checked, and the shapes of its answers.

Source: OpenAI's API reference, "Completions"; the extra fields are vLLM's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ops.errors import InvalidRequest, UnsupportedParameter
from server.protocol.common import Usage
from server.protocol.decoding import decode_body
from server.protocol.sampling import NEUTRAL, SharedFields

DEFAULT_MAX_TOKENS = 16

COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "add_special_tokens": (True,),
}

Prompt = str | list[int]


class CompletionRequest(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | int | list[int]]
    best_of: int | None = None

    logprobs: Any = None
    echo: Any = None
    suffix: Any = None
    add_special_tokens: Any = None

    @classmethod
    def parse(cls, body: bytes) -> CompletionRequest:
        """Decode and check a body; raises InvalidRequest naming the field."""
        request = decode_body(body, _decoder, cls)
        request.refuse_unsupported(COMPLETION_NEUTRAL)
        request.check_stream_options()
        if request.best_of is not None and request.best_of != (1 if request.n is None else request.n):
            raise UnsupportedParameter(
                "best_of is not supported by this server.",
                remedy="Leave it out, or send n's value.",
                param="best_of",
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
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


_decoder = msgspec.json.Decoder(CompletionRequest)


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: None = None


class Completion(msgspec.Struct, frozen=True, tag_field="object", tag="text_completion"):
    """The answer, and the shape of a stream's events, in which `usage` may be null or absent."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
