"""What the offline API gives back, with the names that users of vLLM know."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rtcore.request import FinishReason, TokenLogprobs
from rtcore.text.tokenizer import Tokenizer


class Logprob(msgspec.Struct, frozen=True):
    """How likely a token was in its place: natural logarithm, place among all tokens from 1, and its text."""

    logprob: float
    rank: int | None
    decoded_token: str


TokenChoices = dict[int, Logprob]
"""A token and the likeliest ones in its place, by id; the token itself comes first."""


class CompletionOutput(msgspec.Struct):
    """One sequence of a prompt.

    token_ids: what was generated; the id that ended the sequence is its last. text: what it says, without
    special tokens and the stop string unless asked for, after that of the prompt with echo. finish_reason: None
    while it runs, then stop or length. stop_reason: the stop string, or the id of stop_token_ids, that ended it,
    or what a stop rule says; None for the model's own end. logprobs: of each of token_ids where they were asked
    for. cumulative_logprob: their sum.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenChoices] | None = None
    cumulative_logprob: float | None = None


class RequestOutput(msgspec.Struct):
    """All sequences of one prompt.

    index: the prompt's place among those given. prompt: None where it was given as token ids. finished: whether
    all sequences are. prompt_logprobs: of each token of the prompt where they were asked for; the first has none.
    """

    index: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenChoices | None] | None = None


def choices_of(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[TokenChoices]:
    """What the log-probabilities of tokens say, as users read it; one for each token."""
    found = []
    for token_id, told in zip(token_ids, logprobs, strict=True):
        choices = {token_id: Logprob(told.logprob, told.rank, tokenizer.token_text(token_id))}
        for place, (other, logprob) in enumerate(zip(told.top_ids, told.top_logprobs, strict=True), start=1):
            choices.setdefault(other, Logprob(logprob, place, tokenizer.token_text(other)))
        found.append(choices)
    return found
