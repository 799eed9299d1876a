"""Experts: products of pairs of rows and experts with the experts' own weights, and their weighted sum.

A program takes some rows of one expert's W and, one after the other, some blocks of pairs
(`ops.triton.experts_route`). How many blocks there are is read by the programs; a launch follows from shapes alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate
from ops.triton.dependent import let_next_start, wait_for_previous


@triton.jit
def block_of(block, order, ends, experts, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """The expert of a block, and the block's pairs [BLOCK_M], -1 after the last."""
    number = tl.arange(0, BLOCK_E)
    end = tl.load(ends + number, mask=number < experts, other=2147483647)
    expert = tl.sum((end <= block).to(tl.int32), axis=0)
    return expert, tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))


@triton.jit
def store_pairs(out, up, y, at, pair, width, ACTIVATION: tl.constexpr):
    """y[pair, at] = activation(out) * up, or out; out and up [at, pair] in float32."""
    if ACTIVATION != 0:
        out = activate(out, ACTIVATION) * up
    target = y + pair.to(tl.int64)[None, :] * width + at[:, None]
    tl.store(target, out.to(y.dtype.element_ty), mask=(at < width)[:, None] & (pair >= 0)[None, :])


@triton.jit
def experts_tile_kernel(
    x,
    w,
    y,
    order,
    ends,
    experts,
    share,
    width,
    columns,
    ACTIVATION: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y [pairs, width] of x [pairs / share, columns]: pair p reads row p // share. W is [experts, width, columns];
    with an activation [experts, gate | up, columns], of `width` rows each.

    Grid (ceil(width / BLOCK_N), programs that share the blocks).
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (at < width)[:, None]
    height = width
    if ACTIVATION != 0:
        height = 2 * width
    shift = width.to(tl.int64) * columns
    for block in range(tl.program_id(1), tl.load(ends + experts - 1), tl.num_programs(1)):
        expert, pair = block_of(block, order, ends, experts, BLOCK_E, BLOCK_M)
        left = w + (expert.to(tl.int64) * height + at)[:, None] * columns
        right = x + (tl.maximum(pair, 0) // share).to(tl.int64)[None, :] * columns
        there = (pair >= 0)[None, :]
        out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for start in tl.range(0, columns, BLOCK_K, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK_K)
            within = k < columns
            a = tl.load(left + k[None, :], mask=inside & within[None, :], other=0.0)
            b = tl.load(right + k[:, None], mask=there & within[:, None], other=0.0)
            out = tl.dot(a, b, out)
            if ACTIVATION != 0:
                a = tl.load(left + shift + k[None, :], mask=inside & within[None, :], other=0.0)
                up = tl.dot(a, b, up)
        store_pairs(out, up, y, at, pair, width, ACTIVATION)


@triton.jit
def experts_sum_kernel(parts, shares, y, top_k, width, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """y [T, width]: the sum of parts float32 [T, top_k, width] times shares float32 [T, top_k], the best expert
    first; grid (T, ceil(width / BLOCK)).
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(top_k):
        part = tl.load(parts + (row * top_k + rank) * width + at, mask=inside, other=0.0)
        total += part * tl.load(shares + row * top_k + rank)
    tl.store(y + row * width + at, total.to(y.dtype.element_ty), mask=inside)
