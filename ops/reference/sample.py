"""The meaning of Sample.

Processors apply in the order of vLLM (vllm/v1/sample/sampler.py: raw log-probabilities; allowed and bad tokens;
logit bias; penalties; temperature; min_p; top-k and top-p). Hugging Face's generation has top-k and top-p before
min_p; there the three differ only in what mass top-p's share is taken of.

Top-k keeps tokens as likely as the k-th too (Fan et al. 2018). Min-p keeps tokens at least min_p times as likely
as the best (Nguyen et al. 2024, arXiv 2407.01082). Top-p (Holtzman et al. 2020, arXiv 1904.09751) keeps the most
likely tokens up to and including the one with which their probability reaches p; equally likely tokens are taken
in the order of their ids. The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) divides positive and
multiplies negative scores.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ops.reference.philox import uniform
from ops.sample_columns import Number, RowStatus, Setting

Array = NDArray[Any]

# Below it a temperature could not be divided by in float32; as cold as this, the best token always wins.
COLDEST = 1e-30


class Sampled(NamedTuple):
    """ids int64 [S]; status int32 [S]; logprobs float32 [S]; ranks int32 [S]; top_ids int32 [S, L]; top_logprobs
    float32 [S, L], where L is the most that a row asks for; unused places hold id -1 and 0. Tokens whose logits are
    -inf are never among the likeliest."""

    ids: Array
    status: Array
    logprobs: Array
    ranks: Array
    top_ids: Array
    top_logprobs: Array


def sample(
    logits: Array,
    settings: Array,
    numbers: Array,
    token_start: Array,
    token_ids: Array,
    token_counts: Array,
    bias_start: Array,
    bias_ids: Array,
    bias_values: Array,
    masks: Array,
) -> Sampled:
    """Choose or score one token a row; the arguments are the operator's inputs (ops.schema.SAMPLE)."""
    rows = len(settings)
    most = max(0, int(numbers[:, Number.LOGPROBS].max(initial=0)))
    result = Sampled(
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.int32),
        np.full((rows, most), -1, np.int32),
        np.zeros((rows, most), np.float32),
    )
    for row in range(rows):
        tokens = slice(token_start[row], token_start[row + 1])
        bias = slice(bias_start[row], bias_start[row + 1])
        raw = logits[row]
        if not usable(raw):
            result.status[row] = RowStatus.NOT_FINITE
            continue
        chosen = int(numbers[row, Number.FORCED])
        if chosen < 0:
            mask = int(numbers[row, Number.MASK])
            scores = processed(
                raw,
                settings[row],
                (token_ids[tokens], token_counts[tokens]),
                (bias_ids[bias], bias_values[bias]),
                None if mask < 0 else masks[mask],
            )
            peak = float(scores.max())
            if not math.isfinite(peak):
                result.status[row] = RowStatus.NOT_FINITE if peak > 0 else RowStatus.NOTHING_ALLOWED
                continue
            chosen = _choose(scores, settings[row], numbers[row])
        result.ids[row] = chosen
        count = int(numbers[row, Number.LOGPROBS])
        if count >= 0:
            logs = log_softmax(raw)
            result.logprobs[row] = logs[chosen]
            result.ranks[row] = 1 + np.count_nonzero(raw > raw[chosen])
            best = np.argsort(-raw, kind="stable")[: min(count, np.count_nonzero(raw > -np.inf))]
            result.top_ids[row, : len(best)] = best
            result.top_logprobs[row, : len(best)] = logs[best]
    return result


def usable(raw: Array) -> bool:
    """Whether logits hold a number, and neither NaN nor +inf."""
    peak = raw.max()
    return bool(np.isfinite(peak))


def log_softmax(raw: Array) -> Array:
    """float64 [V]."""
    wide = raw.astype(np.float64)
    wide -= wide.max()
    shifted: Array = wide - math.log(float(np.exp(wide).sum()))
    return shifted


def processed(
    raw: Array,
    settings: Array,
    tokens: tuple[Array, Array],
    bias: tuple[Array, Array],
    mask: Array | None,
) -> Array:
    """The scores float32 [V] that a token is chosen by: mask, bias and penalties applied to logits.

    tokens: ids of prompt and answer, each once, and how often each is in the answer. bias: ids, of which one may
    come several times, and what is added. mask: uint32 words, bit i % 32 of word i / 32 allows token i.
    """
    scores: Array = raw.astype(np.float32)
    if mask is not None:
        allowed = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[: len(scores)]
        scores[allowed == 0] = -np.inf
    ids, counts = tokens
    repetition, presence, frequency = settings[Setting.REPETITION :]
    with np.errstate(over="ignore"):
        for token, value in zip(*bias, strict=True):
            scores[token] += value
        listed = scores[ids]
        if repetition != 1:
            listed = np.where(listed > 0, listed / repetition, listed * repetition)
        listed -= frequency * counts.astype(np.float32)
        listed -= np.where(counts > 0, presence, np.float32(0))
    scores[ids] = listed
    return scores


def _choose(scores: Array, settings: Array, numbers: Array) -> int:
    if settings[Setting.TEMPERATURE] <= 0:
        return int(scores.argmax())
    ids, weights = kept(scores, settings, int(numbers[Number.TOP_K]))
    seed, position = (numbers[[column]].view(np.uint64) for column in (Number.SEED, Number.POSITION))
    return int(ids[drawn(weights, float(uniform(seed, position)[0]))])


def kept(scores: Array, settings: Array, top_k: int) -> tuple[Array, Array]:
    """The tokens that may be drawn: ids ascending, and weights float64 in proportion to their probabilities."""
    temperature, top_p, min_p = (float(value) for value in settings[: Setting.REPETITION])
    temperature = max(temperature, COLDEST)
    peak = float(scores.max())
    chosen = scores > -np.inf
    if min_p > 0:
        chosen &= scores.astype(np.float64) >= peak + temperature * math.log(min_p)
    if 0 < top_k < len(scores):
        chosen &= scores >= np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    ids = np.flatnonzero(chosen)
    weights = np.exp((scores[ids].astype(np.float64) - peak) / temperature)
    if top_p < 1:
        order = np.argsort(-scores[ids], kind="stable")
        falling = weights[order]
        before = np.cumsum(falling) - falling
        size = max(1, int(np.searchsorted(before, top_p * weights.sum())))
        nucleus = np.sort(order[:size])
        ids, weights = ids[nucleus], weights[nucleus]
    return ids, weights


def drawn(weights: Array, number: float) -> int:
    """The index that `number` in [0, 1) falls on, by inversion."""
    cumulative = np.cumsum(weights)
    total = cumulative[-1]
    return int(np.searchsorted(cumulative, min(number * total, np.nextafter(total, 0)), side="right"))
