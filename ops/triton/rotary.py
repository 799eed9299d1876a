"""Heads of queries and keys as attention takes them: RMS norm of each head, then RoPE (arXiv 2104.09864)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned_heads(
    source,
    inside,
    norm,
    epsilon,
    rope_row,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """float32 [n, BLOCK_D]: the heads that begin at the pointers `source` [n], zero where not `inside` [n].

    norm: float32 [HEAD_DIM]. rope_row: the position's cosines, then sines, float32 [ROTARY].
    """
    dim = tl.arange(0, BLOCK_D)
    known = inside[:, None] & (dim < HEAD_DIM)[None, :]
    value = tl.load(source[:, None] + dim[None, :], mask=known, other=0.0).to(tl.float32)
    scale = value
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / HEAD_DIM + epsilon)[:, None]
        value = value * scale * tl.load(norm + dim, mask=dim < HEAD_DIM, other=0.0)[None, :]
    if ROTARY > 0:
        turns = dim < ROTARY
        if INTERLEAVED:
            other = dim ^ 1
            angle = dim // 2
            first = dim % 2 == 0
        else:
            other = tl.where(dim < ROTARY // 2, dim + ROTARY // 2, dim - ROTARY // 2)
            angle = dim % (ROTARY // 2)
            first = dim < ROTARY // 2
        partner = tl.load(source[:, None] + other[None, :], mask=inside[:, None] & turns[None, :], other=0.0)
        partner = partner.to(tl.float32)
        if HAS_NORM:
            partner = partner * scale * tl.load(norm + other, mask=turns, other=0.0)[None, :]
        cosine = tl.load(rope_row + angle, mask=turns, other=1.0)[None, :]
        sine = tl.load(rope_row + ROTARY // 2 + angle, mask=turns, other=0.0)[None, :]
        value = value * cosine + tl.where(first[None, :], -partner, partner) * sine
    return value
