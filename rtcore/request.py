"""What crosses between the text side and the engine: a request of token ids in, deltas of token ids out."""

from __future__ import annotations

from typing import Literal

import msgspec

from rtcore.decoding.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


class EngineRequest(msgspec.Struct, frozen=True):
    """One sequence to generate. The text side has already expanded n > 1 into n requests.

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


class TokenDelta(msgspec.Struct, frozen=True):
    """New tokens of one request; the last delta carries `finish_reason`.

    stop_reason: the stop id that ended the sequence, if one of `params.stop_token_ids` did. A stop id is the
    last of `token_ids`. failure: set when finish_reason is error.
    """

    id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    failure: EngineFailure | None = None
