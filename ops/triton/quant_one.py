"""Products of one row with 4- or 8-bit weights: no column of a tensor core idle, no barrier until the end.

The warps of a program split the columns of 16 rows of W: their sums meet in shared memory, and programs need not
wait for one another. Words come straight from memory into the fragments that `ops.triton.span_products` multiplies,
the first while the kernel before ends. Scales and minima are applied to the sums of 32 columns with 4 bits and of
16 with 8, so that groups of any width take about the same time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.few_rows import ADDED, load_beside, store_result
from ops.triton.fragments import ROWS, STEP, WORDS
from ops.triton.span_products import piece_products, span_ones, span_sums


@triton.jit
def _piece(at, step, steps, NUMBER: tl.constexpr):
    """A piece of a step's words; behind the last step anything, for x is zero there."""
    return tl.load(at + step * STEP + NUMBER * (STEP // 4), mask=step < steps)


@triton.jit
def _pieces(at, step, steps):
    """All four."""
    first, second = _piece(at, step, steps, 0), _piece(at, step, steps, 1)
    return first, second, _piece(at, step, steps, 2), _piece(at, step, steps, 3)


@triton.jit
def _x_of(x_at, step, begin, twice, end, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """A step's x, two columns an element, zero from the column `end` on."""
    found = tl.load(x_at + step * (COLUMNS // 2), mask=step * COLUMNS + begin < end, other=0)
    if not WHOLE:
        found = tl.where(step * COLUMNS + 2 * twice + 1 < end, found, found & 0xFFFF)
    return found


@triton.jit
def _side(side, step, steps, least_at, PER_STEP: tl.constexpr, MINIMA: tl.constexpr):
    """A step's scales and minima; the scales twice where there are none."""
    start = side + tl.minimum(step, steps - 1) * PER_STEP
    scale = tl.load(start)
    least = scale
    if MINIMA:
        least = tl.load(start + least_at)
    return scale, least


@triton.jit
def _weighted(codes, sums, units, side, BITS: tl.constexpr, MINIMA: tl.constexpr):
    """A step's columns of W . x, those of each span by themselves, from the sums of codes and of x."""
    if MINIMA:
        found = codes * units * side[0].to(tl.float32) + sums * side[1].to(tl.float32)
    else:
        found = (codes * units - sums * (1 << (BITS - 1))) * side[0].to(tl.float32)
    return found


@triton.jit
def _row_sums(total, SIDES: tl.constexpr, SLICES: tl.constexpr, SPLIT: tl.constexpr):
    """float32 [SIDES, 16 * SLICES, 1]: the sums of all spans and warps."""
    spans = tl.sum(tl.sum(tl.reshape(total, [SIDES * SLICES, SPLIT, 8, 4, 2, 2]), 5), 3)
    rows = tl.permute(tl.sum(spans, 1), (0, 2, 1))
    return tl.reshape(rows, [SIDES, 16 * SLICES, 1])


@triton.jit
def quant_one_row(
    x,
    words,
    scales,
    bias,
    y,
    norms,
    width,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NORM: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """What `quant_tile_kernel` does, for one row and groups as wide as a span; DEPTH 1 or 2 steps ahead.

    BLOCK_N: 16, 32 or 64 rows of W, with an activation of gate and of up. SPLIT: warps that share the columns of 16
    rows: a program has BLOCK_N / 16 * SPLIT of them, and twice as many with an activation. WHOLE: columns are known
    to be a multiple of 32.
    """
    let_next_start(DEPENDENT)
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    SPAN: tl.constexpr = COLUMNS // 8
    PER_STEP: tl.constexpr = COLUMNS // GROUP * ROWS
    SLICES: tl.constexpr = BLOCK_N // 16
    SIDES: tl.constexpr = 2 if ACTIVATION != 0 else 1
    steps = tl.cdiv(columns, COLUMNS)
    element = tl.arange(0, SIDES * SLICES * SPLIT * 128)
    warp, own = element // 128, element % 128
    thread, item = own // 4, own % 4
    # Sixteen rows are a quarter of a block; those of up lie behind those of gate.
    sixteen = tl.program_id(0) * SLICES + warp // SPLIT % SLICES
    if SIDES == 2:
        sixteen += warp // (SLICES * SPLIT) * (width // 16)
    block, quarter = (sixteen // 4).to(tl.int64), sixteen % 4
    step = warp % SPLIT
    span = 2 * (thread % 4) + item % 2
    at = words + block * (block_bytes // 4) + quarter * 128 + own
    side_at = scales + block * (block_bytes // 2) + steps * (2 * STEP)
    side_at += quarter * 16 + thread // 4 + 8 * (item // 2) + span * SPAN // GROUP * ROWS
    least_at = steps * PER_STEP
    now = _pieces(at, step, steps)
    side = _side(side_at, step, steps, least_at, PER_STEP, MINIMA)
    soon = now
    if DEPTH == 2:
        soon = _pieces(at, step + SPLIT, steps)
    # Two columns of x an element: with 4 bits a thread's four are of 32 columns, with 8 the first two of 16.
    twice = thread // 4 * (SPAN // 2) + thread % 4 + (item if BITS == 4 else item % 2) * 4
    x_at = x.to(tl.pointer_type(tl.int32), bitcast=True) + twice
    ones = span_ones(element)
    units = tl.where((BITS == 4) & (span // 2 % 2 == 1), 2.0**20, 2.0**24)
    # Where spans are whole, so is what a thread has of x.
    begin = thread // 4 * SPAN if WHOLE else 2 * twice
    none = tl.zeros([SIDES * SLICES * SPLIT * 128], tl.float32)
    out = none
    wait_for_previous(DEPENDENT)
    row, one = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, 1)
    if NORM != ADDED:
        beside = load_beside(norms, row, one, 1, width, NORM)
    right = _x_of(x_at, step, begin, twice, columns, COLUMNS, WHOLE)
    soon_right = _x_of(x_at, step + SPLIT, begin, twice, columns, COLUMNS, WHOLE)
    for _ in tl.range(0, steps, SPLIT, num_stages=1):
        next_right = _x_of(x_at, step + 2 * SPLIT, begin, twice, columns, COLUMNS, WHOLE)
        # A piece is asked for where one was used: its registers are free. Two chains of products at a time.
        later = step + DEPTH * SPLIT
        even = piece_products(now[0], right, none, ones, 0, BITS, PACKED)
        first_piece = _piece(at, later, steps, 0)
        odd = piece_products(now[1], right, none, ones, 1, BITS, PACKED)
        second_piece = _piece(at, later, steps, 1)
        even = piece_products(now[2], right, even, ones, 2, BITS, PACKED)
        third_piece = _piece(at, later, steps, 2)
        odd = piece_products(now[3], right, odd, ones, 3, BITS, PACKED)
        ahead = first_piece, second_piece, third_piece, _piece(at, later, steps, 3)
        next_side = _side(side_at, step + SPLIT, steps, least_at, PER_STEP, MINIMA)
        out += _weighted(even + odd, span_sums(right, BITS, PACKED), units, side, BITS, MINIMA)
        side = next_side
        right, soon_right = soon_right, next_right
        if DEPTH == 2:
            now, soon = soon, ahead
        else:
            now = ahead
        step += SPLIT
    if NORM == ADDED:
        # Later than elsewhere: with these registers two programs of 16 warps lie on a multiprocessor.
        beside = load_beside(norms, row, one, 1, width, NORM)
    sides = _row_sums(out, SIDES, SLICES, SPLIT)
    if SIDES == 2:
        upper = tl.arange(0, 2)[:, None, None] == 1
        found = tl.sum(tl.where(upper, 0.0, sides), 0)
        up = tl.sum(tl.where(upper, sides, 0.0), 0)
    else:
        found = tl.reshape(sides, [BLOCK_N, 1])
        up = found
    store_result(found, up, beside, norms, bias, y, row, one, 1, width, HAS_BIAS, ACTIVATION, NORM, BLOCK_N)
