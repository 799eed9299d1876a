"""The fields that chat and text completions share, and what becomes of them."""

from __future__ import annotations

from typing import Any

import msgspec

from ops.errors import InvalidRequest, UnsupportedParameter
from rtcore.decoding.params import Hook
from rtcore.request import ServiceTerms
from server.protocol.structure import StructureFields

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that are known, but not supported: null and these values, which change nothing, are accepted."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SharedFields(StructureFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both requests. null means absent, as OpenAI's clients send it.

    Supported ones have their types here and their ranges in SamplingParams. Those typed Any are refused by
    name unless they are neutral. `user`, `metadata` and their like are accepted and have no effect on the
    answer, as at OpenAI.
    """

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    banned_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    logits_processors: list[str | Hook] | None = None
    stop_rules: list[str | Hook] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    speculation: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    priority: int | None = None
    cache_salt: str | None = None
    queue_timeout: float | None = None
    timeout: float | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    length_penalty: Any = None
    use_beam_search: Any = None
    spaces_between_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    store: Any = None
    service_tier: Any = None

    def refuse_unsupported(self, neutral: dict[str, tuple[Any, ...]]) -> None:
        """Raise UnsupportedParameter for the first field of `neutral` that would change the result."""
        for name, harmless in neutral.items():
            value = getattr(self, name)
            if value is not None and not any(_same(value, neutral_value) for neutral_value in harmless):
                raise unsupported(name, harmless)

    def check_stream(self) -> None:
        """Raise InvalidRequest for fields that do not go with `stream` as it is."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options goes with stream: true only.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def terms(self) -> ServiceTerms:
        """How urgently the request is to be served, and with whom it shares cached blocks."""
        return ServiceTerms(
            priority=self.priority or 0,
            cache_salt=self.cache_salt or "",
            queue_timeout=self.queue_timeout,
            timeout=self.timeout,
        )

    def sampling_fields(self) -> dict[str, Any]:
        """What SamplingParams takes of the request, less max_tokens; None where the request does not say."""
        return {
            "n": self.n,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids,
            "banned_token_ids": self.banned_token_ids,
            "bad_words": self.bad_words,
            "min_tokens": self.min_tokens,
            "prompt_logprobs": self.prompt_logprobs,
            "logits_processors": self.logits_processors,
            "stop_rules": self.stop_rules,
            "seed": self.seed,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "structured_outputs": self.structure(),
            "speculation": self.speculation,
        }


def unsupported(name: str, harmless: tuple[Any, ...]) -> UnsupportedParameter:
    """The refusal of a known field whose value would change the result."""
    allowed = " or ".join(msgspec.json.encode(value).decode() for value in harmless)
    remedy = f"Leave it out, or send {allowed}." if harmless else "Leave it out."
    return UnsupportedParameter(f"{name} is not supported by this server.", remedy=remedy, param=name)


def _same(value: Any, neutral: Any) -> bool:
    """Equality that does not take true for 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
