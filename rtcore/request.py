"""What crosses between the text side and the engine: a request of token ids in, deltas of token ids out."""

from __future__ import annotations

from typing import Literal

import msgspec

from rtcore.decoding.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


MIN_PRIORITY = -8
MAX_PRIORITY = 8


class ServiceTerms(msgspec.Struct, frozen=True, kw_only=True):
    """For whom and how urgently a request is served.

    tenant: whom it is served for; tenants get equal shares, or shares by weight. priority: MIN_PRIORITY to
    MAX_PRIORITY, smaller goes first; those above 0 are refused first under overload. cache_salt: requests with
    different salts share no cached blocks. read_cache: False computes the whole prompt even if it is cached.
    queue_timeout: seconds after submission by which it must have been started. timeout: seconds after
    submission by which it must have ended.
    """

    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    read_cache: bool = True
    queue_timeout: float | None = None
    timeout: float | None = None


class EngineRequest(ServiceTerms, frozen=True):
    """One sequence to generate. The text side has already expanded n > 1 into n requests; they share the cache
    blocks of their prompt, which only the first of them computes.

    id: unique among live requests. prompt_ids: at least one token. params.max_tokens is never None here: the
    text side resolved it against the context length. arrival: seconds since the epoch, for queue order.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float = 0.0


class EngineFailure(msgspec.Struct, frozen=True):
    """An error as it crosses the process border: `kind` is the class name in ops.errors.

    retry_after: seconds, for the kinds that carry it. `rtcore/failure.py` converts to and from exceptions.
    """

    kind: str
    what: str
    why: str = ""
    remedy: str = ""
    param: str | None = None
    retry_after: float | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was in its place, by the model's own distribution.

    rank: 1 for the likeliest, and one more for each token that is likelier. top_ids, top_logprobs: the likeliest
    tokens, the first one first, as many as were asked for; the token itself need not be among them.
    """

    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class TokenDelta(msgspec.Struct, frozen=True):
    """New tokens of one request; the last delta carries `finish_reason`.

    stop_reason: the stop id that ended the sequence, if one of `params.stop_token_ids` did, or what a stop rule of
    the user's own says. A stop id is the last of `token_ids`. failure: set when finish_reason is error. logprobs:
    one for each of token_ids where they were asked for, else empty. prompt_logprobs: of the prompt's next tokens;
    the first delta with any begins with the prompt's second token, since the first follows on nothing.
    """

    id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    failure: EngineFailure | None = None
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
