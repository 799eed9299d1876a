"""What the offline API gives back, with the names that users of vLLM know."""

from __future__ import annotations

import msgspec

from rtcore.request import FinishReason


class CompletionOutput(msgspec.Struct):
    """One sequence of a prompt.

    token_ids: what was generated; the id that ended the sequence is its last. text: what it says, without
    special tokens and the stop string unless asked for. finish_reason: None while it runs, then stop or length.
    stop_reason: the stop string, or the id of stop_token_ids, that ended it; None for the model's own end.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct):
    """All sequences of one prompt.

    index: the prompt's place among those given. prompt: None where it was given as token ids. finished: whether
    all sequences are.
    """

    index: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
