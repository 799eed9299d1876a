"""What a request must be answered, by the definition of sampling alone: no engine, no batch, no state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ops.reference.sample import Sampled, sample
from ops.sample_columns import NO_MASK, NOT_FORCED
from rtcore.decoding.params import SamplingParams


def choose(
    logits: NDArray[np.float32],
    params: SamplingParams,
    tokens: Sequence[int],
    prompt_length: int,
    stop_ids: Sequence[int] = (),
) -> Sampled:
    """The reference's choice of the token after `tokens`, whose logits float32 [V] are given."""
    answer = list(tokens[prompt_length:])
    distinct = sorted(set(tokens))
    bias = list(params.logit_bias.items()) + [(token, -np.inf) for token in params.banned_token_ids]
    if len(answer) < params.min_tokens:
        bias += [(token, -np.inf) for token in {*stop_ids, *params.stop_token_ids}]
    for word in params.bad_word_ids:
        beginning = list(word[:-1])
        if answer[len(answer) - len(beginning) :] == beginning:
            bias.append((word[-1], -np.inf))
    mask = np.zeros((0, -(-len(logits) // 32)), np.uint32)
    if params.allowed_token_ids is not None:
        flags = np.isin(np.arange(32 * mask.shape[1]), params.allowed_token_ids).reshape(1, -1)
        mask = np.packbits(flags, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    seed = np.array([(params.seed or 0) % 2**64], np.uint64).view(np.int64)[0]
    count = -1 if params.logprobs is None else params.logprobs
    settings = (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )
    numbers = (seed, len(tokens), max(0, params.top_k), count, NOT_FORCED, 0 if len(mask) else NO_MASK)
    return sample(
        logits[None].astype(np.float32),
        np.array([settings], np.float32),
        np.array([numbers], np.int64),
        *(np.array([0, len(distinct)], np.int32), np.array(distinct, np.int32)),
        np.array([answer.count(token) for token in distinct], np.int32),
        *(np.array([0, len(bias)], np.int32), np.array([token for token, _ in bias], np.int32)),
        np.array([value for _, value in bias], np.float32),
        mask,
    )


def answer(
    logits: Callable[[Sequence[int]], NDArray[np.floating]],
    prompt: Sequence[int],
    params: SamplingParams,
    stop_ids: Sequence[int] = (),
) -> tuple[list[int], list[Sampled]]:
    """The tokens of a request whose max_tokens is set, and the reference's choice of each."""
    tokens, choices = list(prompt), []
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {*stop_ids})
    for _ in range(params.max_tokens or 0):
        choice = choose(logits(tokens).astype(np.float32), params, tokens, len(prompt), sorted(ends))
        choices.append(choice)
        if choice.status[0]:
            break
        tokens.append(int(choice.ids[0]))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :], choices
