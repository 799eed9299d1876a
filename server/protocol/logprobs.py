"""Log-probabilities of tokens in the shapes of chat and text completions.

Source: OpenAI's API reference, "logprobs" of "Chat" and of "Completions"; prompt_logprobs are vLLM's. Texts of
tokens whose bytes are no whole characters begin with `bytes:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rtcore.request import TokenLogprobs
    from rtcore.text.tokenizer import Tokenizer

_LOWEST = -9999.0
"""What stands for minus infinity, which JSON has no number for, as at OpenAI."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens: its text, natural logarithm of its probability, and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A token of a chat's answer, and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Lists with an entry for each token. text_offset: where its text begins in the choice's whole text, in
    characters. The first token of an echoed prompt has no log-probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> ChatLogprobs:
    """The shape that a chat's choice has of some tokens."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(tokenizer.token_text(token_id), _finite(logprob), list(tokenizer.token_bytes(token_id)))

    content = []
    for token_id, told in zip(token_ids, logprobs, strict=True):
        own = top(token_id, told.logprob)
        others = [top(*pair) for pair in zip(told.top_ids, told.top_logprobs, strict=True)]
        content.append(ChatTokenLogprob(own.token, own.logprob, own.bytes, others))
    return ChatLogprobs(content)


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """The shape that a completion's choice has of some tokens; None where a token has no log-probability."""
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, told in zip(token_ids, logprobs, strict=True):
        values.append(None if told is None else _finite(told.logprob))
        if told is None:
            tops.append(None)
            continue
        pairs = zip(told.top_ids, told.top_logprobs, strict=True)
        likeliest = {tokenizer.token_text(other): _finite(logprob) for other, logprob in pairs}
        tops.append(likeliest | {tokenizer.token_text(token_id): _finite(told.logprob)})
    return CompletionLogprobs(list(offsets), values, [tokenizer.token_text(one) for one in token_ids], tops)


def prompt_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> PromptLogprobs:
    """vLLM's shape for the tokens of a prompt, of which all but the first have log-probabilities."""
    found: PromptLogprobs = [None]
    for token_id, told in zip(token_ids[1:], logprobs, strict=True):
        entry = {token_id: PromptLogprob(_finite(told.logprob), told.rank, tokenizer.token_text(token_id))}
        for place, (other, logprob) in enumerate(zip(told.top_ids, told.top_logprobs, strict=True), start=1):
            entry.setdefault(other, PromptLogprob(_finite(logprob), place, tokenizer.token_text(other)))
        found.append(entry)
    return found


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
