"""Products of one row with 4- or 8-bit weights: no column of a tensor core's product idle, no barrier until the end.

The warps of a program split the columns of 16 rows of W: their sums meet in shared memory, and programs need not wait
for one another. Words come straight from memory into the fragments that `ops.triton.span_products` multiplies, the
first while the kernel before ends. Scales and minima are applied to the sums of 32 columns with 4 bits and of 16 with
8, so that all groups as wide and wider take the same time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.few_rows import add_parts, part_of
from ops.triton.fragments import ROWS, STEP, WORDS
from ops.triton.span_products import piece_products, span_sums


@triton.jit
def _pieces(at, step, last):
    """A step's four pieces of words; zero from the step `last` on."""
    inside = step < last
    start = at + step * STEP
    first = tl.load(start, mask=inside, other=0)
    second = tl.load(start + STEP // 4, mask=inside, other=0)
    third = tl.load(start + STEP // 2, mask=inside, other=0)
    return first, second, third, tl.load(start + 3 * STEP // 4, mask=inside, other=0)


@triton.jit
def _side(side, step, last, least_at, PER_STEP: tl.constexpr, MINIMA: tl.constexpr):
    """A step's scales and minima: twice the scales where there are none."""
    start = side + step * PER_STEP
    scale = tl.load(start, mask=step < last, other=0.0)
    least = scale
    if MINIMA:
        least = tl.load(start + least_at, mask=step < last, other=0.0)
    return scale, least


@triton.jit
def _weighted(words, x, sums, units, side, BITS: tl.constexpr, MINIMA: tl.constexpr, PACKED: tl.constexpr):
    """A step's columns of W . x, those of each span by themselves; sums: of x."""
    # Two chains of products at a time.
    none = tl.zeros(sums.shape, tl.float32)
    even = piece_products(words[0], x, none, 0, BITS, PACKED)
    odd = piece_products(words[1], x, none, 1, BITS, PACKED)
    even = piece_products(words[2], x, even, 2, BITS, PACKED)
    odd = piece_products(words[3], x, odd, 3, BITS, PACKED)
    codes = (even + odd) * units
    if MINIMA:
        found = codes * side[0].to(tl.float32) + sums * side[1].to(tl.float32)
    else:
        found = (codes - sums * (1 << (BITS - 1))) * side[0].to(tl.float32)
    return found


@triton.jit
def _row_sums(total, SLICES: tl.constexpr, SPLIT: tl.constexpr):
    """float32 [16 * SLICES, 1]: the sums of all spans and warps."""
    spans = tl.sum(tl.sum(tl.reshape(total, [SLICES, SPLIT, 8, 4, 2, 2]), 5), 3)
    rows = tl.permute(tl.sum(spans, 1), (0, 2, 1))
    return tl.reshape(rows, [16 * SLICES, 1])


@triton.jit
def quant_one_row(
    x,
    words,
    scales,
    bias,
    y,
    partial,
    counters,
    width,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """What `quant_tile_kernel` does, for one row and groups as wide as a span; DEPTH 1 or 2 steps ahead.

    BLOCK_N: 16, 32 or 64 rows of W. SPLIT: warps that share the columns of 16 rows; BLOCK_N / 16 * SPLIT in all.
    """
    let_next_start(DEPENDENT)
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    SPAN: tl.constexpr = COLUMNS // 8
    PER_STEP: tl.constexpr = COLUMNS // GROUP * ROWS
    SLICES: tl.constexpr = BLOCK_N // 16
    steps = tl.cdiv(columns, COLUMNS)
    first, last = part_of(steps)
    element = tl.arange(0, SLICES * SPLIT * 128)
    warp, own = element // 128, element % 128
    thread, item = own // 4, own % 4
    # Sixteen rows are a quarter of a block.
    sixteen = tl.program_id(0) * SLICES + warp // SPLIT
    block, quarter = (sixteen // 4).to(tl.int64), sixteen % 4
    step = first + warp % SPLIT
    span = 2 * (thread % 4) + item % 2
    at = words + block * (block_bytes // 4) + quarter * 128 + own
    side_at = scales + block * (block_bytes // 2) + steps * (2 * STEP)
    side_at += quarter * 16 + thread // 4 + 8 * (item // 2) + span * SPAN // GROUP * ROWS
    least_at = steps * PER_STEP
    beyond = (width // ROWS).to(tl.int64)
    upper_at, upper_side = at + beyond * (block_bytes // 4), side_at + beyond * (block_bytes // 2)
    now = _pieces(at, step, last)
    side = _side(side_at, step, last, least_at, PER_STEP, MINIMA)
    now2, side2 = now, side
    if ACTIVATION != 0:
        now2 = _pieces(upper_at, step, last)
        side2 = _side(upper_side, step, last, least_at, PER_STEP, MINIMA)
    soon, soon2 = now, now2
    if DEPTH == 2:
        soon = _pieces(at, step + SPLIT, last)
        if ACTIVATION != 0:
            soon2 = _pieces(upper_at, step + SPLIT, last)
    wait_for_previous(DEPENDENT)
    # Two columns of x an element: with 4 bits a thread's four are of 32 columns, with 8 the first two of 16.
    twice = thread // 4 * (SPAN // 2) + thread % 4 + (item if BITS == 4 else item % 2) * 4
    x_at = x.to(tl.pointer_type(tl.int32), bitcast=True) + twice
    units = tl.where((BITS == 4) & (span // 2 % 2 == 1), 2.0**20, 2.0**24)
    out = tl.zeros([SLICES * SPLIT * 128], tl.float32)
    up = out
    for _ in tl.range(first, last, SPLIT, num_stages=1):
        column = step * COLUMNS + 2 * twice
        both = tl.load(x_at + step * (COLUMNS // 2), mask=(step < last) & (column < columns), other=0)
        both = tl.where(column + 1 < columns, both, both & 0xFFFF)
        ahead = _pieces(at, step + DEPTH * SPLIT, last)
        next_side = _side(side_at, step + SPLIT, last, least_at, PER_STEP, MINIMA)
        if ACTIVATION != 0:
            ahead2 = _pieces(upper_at, step + DEPTH * SPLIT, last)
            next_side2 = _side(upper_side, step + SPLIT, last, least_at, PER_STEP, MINIMA)
        sums = span_sums(both, BITS, PACKED)
        out += _weighted(now, both, sums, units, side, BITS, MINIMA, PACKED)
        side = next_side
        if ACTIVATION != 0:
            up += _weighted(now2, both, sums, units, side2, BITS, MINIMA, PACKED)
            side2 = next_side2
        if DEPTH == 2:
            now, soon = soon, ahead
            if ACTIVATION != 0:
                now2, soon2 = soon2, ahead2
        else:
            now = ahead
            if ACTIVATION != 0:
                now2 = ahead2
        step += SPLIT
    out = _row_sums(out, SLICES, SPLIT)
    up = _row_sums(up, SLICES, SPLIT) if ACTIVATION != 0 else out
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    one = tl.arange(0, 1)
    add_parts(out, up, partial, counters, bias, y, row, one, 1, width, HAS_BIAS, ACTIVATION, 1, BLOCK_N)
