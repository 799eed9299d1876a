"""Sample, its passes over all logits: masks, lists of biases and penalties, maxima, and the next step's tokens.

A row is read in parts by many programs. What a part comes to is summed in whole numbers or kept for the row's own
program (ops/triton/sample_choose.py), so that the order of programs changes no bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.sample_columns import NEUTRAL_SETTINGS, Number, Setting

SETTINGS = tl.constexpr(len(NEUTRAL_SETTINGS))
NUMBERS = tl.constexpr(len(Number))
TEMPERATURE = tl.constexpr(int(Setting.TEMPERATURE))
TOP_P = tl.constexpr(int(Setting.TOP_P))
MIN_P = tl.constexpr(int(Setting.MIN_P))
REPETITION = tl.constexpr(int(Setting.REPETITION))
PRESENCE = tl.constexpr(int(Setting.PRESENCE))
FREQUENCY = tl.constexpr(int(Setting.FREQUENCY))
SEED = tl.constexpr(int(Number.SEED))
POSITION = tl.constexpr(int(Number.POSITION))
TOP_K = tl.constexpr(int(Number.TOP_K))
LOGPROBS = tl.constexpr(int(Number.LOGPROBS))
FORCED = tl.constexpr(int(Number.FORCED))
MASK = tl.constexpr(int(Number.MASK))
NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def sample_feed_kernel(input_ids, token_source, ids, tokens, BLOCK: tl.constexpr):
    """input_ids int64 [tokens]: those whose token_source int32 names a row take that row's of `ids`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(token_source + at, mask=at < tokens, other=-1)
    tl.store(input_ids + at, tl.load(ids + row, mask=row >= 0, other=0), mask=row >= 0)


@triton.jit
def sample_part_kernel(
    logits,
    numbers,
    masks,
    scores,
    peaks,
    firsts,
    sums,
    columns,
    parts,
    words,
    COPY: tl.constexpr,
    PART: tl.constexpr,
):
    """Of PART logits float32 the largest, its index (the first of equals), and the sum of exp(logit - largest).

    What is no number counts as infinite, so that the row's largest shows it. COPY writes scores, in which what the
    row's mask does not allow is -inf. Grid (rows, parts).
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    inside = at < columns
    x = tl.load(logits + row * columns + at, mask=inside, other=float("-inf"))
    x = tl.where(x != x, float("inf"), x)
    peak = tl.max(x, axis=0)
    tl.store(peaks + row * parts + part, peak)
    tl.store(firsts + row * parts + part, tl.min(tl.where(x == peak, at, NOWHERE), axis=0))
    finite = tl.where(tl.abs(peak) < float("inf"), peak, 0.0)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(x - finite), axis=0))
    if COPY:
        mask = tl.load(numbers + row * NUMBERS + MASK)
        if mask >= 0:
            word = tl.load(masks + mask * words + at // 32, mask=inside, other=0)
            x = tl.where(((word >> (at % 32)) & 1) != 0, x, float("-inf"))
        tl.store(scores + row * columns + at, x, mask=inside)


@triton.jit
def penalised(score, count, repetition, presence, frequency):
    """A listed token's score after the penalties, as in ops.reference.sample.processed."""
    turned = tl.where(score > 0, tl.div_rn(score, repetition), score * repetition)
    score = tl.where(repetition != 1.0, turned, score)
    return score - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)


@triton.jit
def sample_lists_kernel(
    scores,
    settings,
    pending,
    ids,
    token_start,
    token_ids,
    token_counts,
    bias_start,
    bias_ids,
    bias_values,
    columns,
    BLOCK: tl.constexpr,
):
    """Adds biases to scores, of which a row lists each token once, then subtracts penalties. Grid (rows).

    pending int32 [rows]: where it names a row of `ids`, that token counts once more than the lists say: it was
    chosen after the host made them.
    """
    row = tl.program_id(0).to(tl.int64)
    own = scores + row * columns
    lane = tl.arange(0, BLOCK)
    end = tl.load(bias_start + row + 1)
    for start in range(tl.load(bias_start + row), end, BLOCK):
        at = start + lane
        token = tl.load(bias_ids + at, mask=at < end, other=0)
        value = tl.load(bias_values + at, mask=at < end, other=0.0)
        tl.store(own + token, tl.load(own + token, mask=at < end, other=0.0) + value, mask=at < end)
    tl.debug_barrier()
    repetition = tl.load(settings + row * SETTINGS + REPETITION)
    presence = tl.load(settings + row * SETTINGS + PRESENCE)
    frequency = tl.load(settings + row * SETTINGS + FREQUENCY)
    source = tl.load(pending + row)
    newest = tl.load(ids + source, mask=source >= 0, other=-1).to(tl.int32)
    end = tl.load(token_start + row + 1)
    listed = 0
    for start in range(tl.load(token_start + row), end, BLOCK):
        at = start + lane
        token = tl.load(token_ids + at, mask=at < end, other=-2)
        count = tl.load(token_counts + at, mask=at < end, other=0) + (token == newest).to(tl.int32)
        listed += tl.sum((token == newest).to(tl.int32), axis=0)
        score = tl.load(own + token, mask=at < end, other=0.0)
        tl.store(own + token, penalised(score, count, repetition, presence, frequency), mask=at < end)
    missing = (newest >= 0) & (listed == 0)
    score = tl.load(own + newest, mask=missing, other=0.0)
    tl.store(own + newest, penalised(score, missing.to(tl.int32), repetition, presence, frequency), mask=missing)
