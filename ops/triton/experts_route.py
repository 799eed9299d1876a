"""Which rows go to which experts, chosen and put in order on the GPU: no program and no host waits for a count.

A pair is one row and one of its experts, row * top_k + rank. Pairs of an expert are laid side by side in blocks,
of which only the last is not full; products then take one block of one expert at a time (as MegaBlocks does, Gale
et al. 2022, arXiv 2211.15841).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous


@triton.jit
def experts_route_kernel(
    logits, chosen, shares, experts, top_k, normalise, scale, DEPENDENT: tl.constexpr, BLOCK_E: tl.constexpr
):
    """chosen int32 and shares float32 [T, top_k] for logits float32 [T, experts]: the best experts of each row, the
    first of equal ones first, and the softmax's weights over all experts, or over the chosen ones; grid (T).

    A logit that is no number is the least of all.
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK_E)
    there = expert < experts
    score = tl.load(logits + row * experts + expert, mask=there, other=float("-inf"))
    score = tl.where(score == score, score, float("-inf"))
    peak = tl.max(score, axis=0)
    # The difference of two that are infinite is no number: the best weigh 1.
    best = score == peak
    decay = tl.where(there, tl.exp(tl.where(best, 0.0, score) - tl.where(best, 0.0, peak)), 0.0)
    place = tl.full([BLOCK_E], BLOCK_E, tl.int32)
    for rank in range(top_k):
        left = there & (place == BLOCK_E)
        highest = tl.max(tl.where(left, score, float("-inf")), axis=0)
        first = tl.min(tl.where(left & (score == highest), expert, BLOCK_E), axis=0)
        place = tl.where(expert == first, rank, place)
    taken = place < BLOCK_E
    total = tl.sum(tl.where(taken | (normalise == 0), decay, 0.0), axis=0)
    tl.store(chosen + row * top_k + place, expert, mask=taken)
    tl.store(shares + row * top_k + place, decay / total * scale, mask=taken)


@triton.jit
def experts_group_kernel(
    chosen, order, ends, pairs, experts, block, DEPENDENT: tl.constexpr, BLOCK_E: tl.constexpr, CHUNK: tl.constexpr
):
    """order int32: the pairs of each expert in blocks of `block`, -1 where a block has no more; ends int32
    [experts]: blocks of this expert and all before it; grid (experts). Pairs keep their order.
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    own = tl.program_id(0)
    expert = tl.arange(0, BLOCK_E)
    counts = tl.zeros([BLOCK_E], tl.int32)
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        ids = tl.load(chosen + at, mask=at < pairs, other=0)
        counts += tl.histogram(ids, BLOCK_E, mask=at < pairs)
    blocks = (counts + block - 1) // block
    first = tl.sum(tl.where(expert < own, blocks, 0), axis=0)
    last = first + tl.sum(tl.where(expert == own, blocks, 0), axis=0)
    tl.store(ends + own, last)
    place = first * block
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        mine = (tl.load(chosen + at, mask=at < pairs, other=-1) == own).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, axis=0) - 1, at, mask=mine == 1)
        place += tl.sum(mine, axis=0)
    for start in range(place, last * block, CHUNK):
        at = start + tl.arange(0, CHUNK)
        tl.store(order + at, tl.full([CHUNK], -1, tl.int32), mask=at < last * block)
