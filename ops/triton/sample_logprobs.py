"""Sample, log-probabilities: of the chosen token, its rank, and the likeliest tokens, by the logits as they are."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.sample import LOGPROBS, NOWHERE, NUMBERS
from ops.triton.sample_choose import best_of


@triton.jit
def take_best(value, token):
    """The largest value, the first of its tokens, and the values without it."""
    best = tl.max(value, axis=0)
    chosen = tl.min(tl.where(value == best, token, NOWHERE), axis=0)
    return best, chosen, tl.where(token == chosen, float("-inf"), value)


@triton.jit
def sample_rank_kernel(
    logits,
    numbers,
    ids,
    status,
    above,
    part_values,
    part_ids,
    columns,
    parts,
    PART: tl.constexpr,
    TOPS: tl.constexpr,
):
    """above int32 [rows, parts]: logits of a part above the chosen token's. part_values, part_ids
    [rows, parts, TOPS]: as many of its likeliest tokens as the row asks for. Grid (rows, parts)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    asked = tl.load(numbers + row * NUMBERS + LOGPROBS)
    if (asked < 0) | (tl.load(status + row) != 0):
        return
    at = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * columns + at, mask=at < columns, other=float("-inf"))
    chosen = tl.load(logits + row * columns + tl.load(ids + row))
    tl.store(above + row * parts + part, tl.sum((value > chosen).to(tl.int32), axis=0))
    place = (row * parts + part) * TOPS
    for number in range(asked.to(tl.int32)):
        best, token, value = take_best(value, at)
        tl.store(part_values + place + number, best)
        tl.store(part_ids + place + number, token)


@triton.jit
def sample_logprobs_kernel(
    logits,
    numbers,
    ids,
    status,
    raw_peaks,
    sums,
    above,
    part_values,
    part_ids,
    logprobs,
    ranks,
    top_ids,
    top_logprobs,
    columns,
    parts,
    PARTS: tl.constexpr,
    TOPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """logprobs float32, ranks int32 [rows]; top_ids int32, top_logprobs float32 [rows, TOPS], -1 and 0 where a row
    asks for fewer. Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    asked = tl.load(numbers + row * NUMBERS + LOGPROBS)
    lane = tl.arange(0, BLOCK_T)
    tl.store(top_ids + row * TOPS + lane, tl.full([BLOCK_T], -1, tl.int32), mask=lane < TOPS)
    tl.store(top_logprobs + row * TOPS + lane, tl.zeros([BLOCK_T], tl.float32), mask=lane < TOPS)
    if (asked < 0) | (tl.load(status + row) != 0):
        tl.store(logprobs + row, 0.0)
        tl.store(ranks + row, 0)
        return
    tl.debug_barrier()
    every = tl.arange(0, PARTS)
    peak = best_of(raw_peaks, row, parts, PARTS)
    part_peak = tl.load(raw_peaks + row * parts + every, mask=every < parts, other=float("-inf"))
    part_sum = tl.load(sums + row * parts + every, mask=every < parts, other=0.0)
    scale = tl.exp((part_peak - peak).to(tl.float64))
    whole = tl.log(tl.sum(tl.where(part_sum > 0, part_sum.to(tl.float64) * scale, 0.0), axis=0))
    chosen = tl.load(logits + row * columns + tl.load(ids + row))
    tl.store(logprobs + row, (chosen.to(tl.float64) - peak.to(tl.float64) - whole).to(tl.float32))
    counts = tl.load(above + row * parts + every, mask=every < parts, other=0)
    tl.store(ranks + row, 1 + tl.sum(counts, axis=0))
    place = tl.arange(0, PARTS * BLOCK_T)
    part, number = place // BLOCK_T, place % BLOCK_T
    known = (part < parts) & (number < asked)
    value = tl.load(part_values + (row * parts + part) * TOPS + number, mask=known, other=float("-inf"))
    token = tl.load(part_ids + (row * parts + part) * TOPS + number, mask=known, other=NOWHERE)
    for number in range(asked.to(tl.int32)):
        best, first, value = take_best(value, token)
        real = best > float("-inf")
        tl.store(top_ids + row * TOPS + number, tl.where(real, first, -1))
        logprob = (best.to(tl.float64) - peak.to(tl.float64) - whole).to(tl.float32)
        tl.store(top_logprobs + row * TOPS + number, tl.where(real, logprob, 0.0))
