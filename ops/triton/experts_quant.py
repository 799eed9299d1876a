"""Products of pairs of rows and experts with weights in 4 or 8 bits in the layout cuda-fragments."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.experts import block_of, store_pairs
from ops.triton.fragments import ROWS, WORDS, scales_at, step_words
from ops.triton.quant_matmul import scaled_weights


@triton.jit
def experts_quant_tile_kernel(
    x,
    words,
    scales,
    y,
    order,
    ends,
    experts,
    share,
    width,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """As `experts_tile_kernel`; `words` and `scales` are the same address, and `width` is a multiple of 64."""
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    BLOCKS: tl.constexpr = BLOCK_N // ROWS
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    steps = tl.cdiv(columns, COLUMNS)
    least_at = steps * (COLUMNS // GROUP * ROWS)
    beyond = width // ROWS
    own = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = own < beyond
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    for block in range(tl.program_id(1), tl.load(ends + experts - 1), tl.num_programs(1)):
        expert, pair = block_of(block, order, ends, experts, BLOCK_E, BLOCK_M)
        first = expert * beyond
        if ACTIVATION != 0:
            first = 2 * first
        # The scales of rows that are not there: any that are.
        side = scales_at(scales, steps, block_bytes, first * ROWS + tl.where(at < width, at, 0))
        upper = side + beyond.to(tl.int64) * (block_bytes // 2)
        x_at = x + (tl.maximum(pair, 0) // share).to(tl.int64)[None, :] * columns
        there = (pair >= 0)[None, :]
        out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for step in tl.range(0, steps, num_stages=STAGES):
            start = step * COLUMNS
            code = step_words(words, step, block_bytes, first + own, inside, BLOCKS)
            if ACTIVATION != 0:
                code2 = step_words(words, step, block_bytes, first + beyond + own, inside, BLOCKS)
            for number in tl.static_range(16 // BITS):
                k = start + number * 64 + tl.arange(0, 64)
                group = (start + number * 64) // GROUP
                right = tl.load(x_at + k[:, None], mask=there & (k < columns)[:, None], other=0.0)
                left = scaled_weights(code, side, group, least_at, number, BITS, GROUP, MINIMA, PACKED)
                out = tl.dot(left, right, out)
                if ACTIVATION != 0:
                    left = scaled_weights(code2, upper, group, least_at, number, BITS, GROUP, MINIMA, PACKED)
                    up = tl.dot(left, right, up)
        store_pairs(out, up, y, at, pair, width, ACTIVATION)
