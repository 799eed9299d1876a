"""Products of two to sixteen rows with 4- or 8-bit weights: less to do for each code, and more warps at a time.

Words come straight into registers, some steps ahead, the first while the kernel before ends. A mask alone makes two
codes of a word two float16: their bits lie in the mantissa, which without an exponent counts in units of 2^-24
(2^-20 for the upper codes of a byte). Tensor cores multiply such numbers exactly; scales take the unit off the
sums. The code that stands for zero is taken off by a product with a constant matrix. Eight columns wide, the
product is the older one of mma.sync, which lets a warp go on while it runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.few_rows import add_parts, part_of
from ops.triton.fragments import ROWS, STEP, WORDS, pair_codes, scales_at, turned_words

#: What a bit of a float16 without exponent stands for, and what takes it off again.
_UNIT = tl.constexpr(2.0**-24)
_UNITS = tl.constexpr(2.0**24)


@triton.jit
def group_scales(side, step, count, GROUPS: tl.constexpr):
    """The scales of a step's groups, a vector each; those after the last step are not asked for."""
    first = side + tl.minimum(step, count - 1) * (GROUPS * ROWS)
    found = (tl.load(first),)
    for group in tl.static_range(1, GROUPS):
        found = found + (tl.load(first + group * ROWS),)  # noqa: RUF005  (Triton knows no unpacking)
    return found


@triton.jit
def _words_ahead(words, step, last, block_bytes, block, inside, BLOCKS: tl.constexpr):
    """int32 [64 * BLOCKS, 32]: a step's words, zero outside and from the step `last` on."""
    start = words + block.to(tl.int64)[:, None] * (block_bytes // 4) + step * STEP
    found = tl.load(start + tl.arange(0, STEP)[None, :], mask=inside[:, None] & (step < last), other=0)
    return turned_words(found, BLOCKS)


@triton.jit
def _x_ahead(x_at, start, columns, SPAN: tl.constexpr, COUNT: tl.constexpr):
    """COUNT times SPAN columns of x from `start` on: a tuple of [SPAN, rows]."""
    k = start + tl.arange(0, SPAN)
    found = (tl.load(x_at + k[:, None], mask=(k < columns)[:, None], other=0.0),)
    for span in tl.static_range(1, COUNT):
        at = k + span * SPAN
        tile = tl.load(x_at + at[:, None], mask=(at < columns)[:, None], other=0.0)
        found = found + (tile,)  # noqa: RUF005  (Triton knows no unpacking)
    return found


@triton.constexpr_function
def _mask_ptx(pair: int, bits: int) -> str:
    """Both operands are the same word: of two neighbouring columns."""
    mask = "0x00ff00ff" if bits == 8 else "0x00f000f0" if pair % 2 else "0x000f000f"
    moved = 8 * (pair if bits == 8 else pair // 2)
    if not moved:
        return f"and.b32 $0, $1, {mask};"
    return f"{{.reg .b32 a; shr.u32 a, $1, {moved}; and.b32 $0, a, {mask};}}"


@triton.jit
def _bare_codes(words, PAIR: tl.constexpr, BITS: tl.constexpr, PACKED: tl.constexpr):
    """A pair's codes in the order of columns, float16 [rows, 2 * words]: in units, or where not PACKED as they are.

    That both columns of a word share a register is checked when the kernel is compiled (export/kernels/compile.py).
    """
    shape: tl.constexpr = [words.shape[0], 2 * words.shape[1]]
    if PACKED:
        twice = tl.broadcast_to(words[:, :, None], [words.shape[0], words.shape[1], 2])
        found = tl.inline_asm_elementwise(
            _mask_ptx(PAIR, BITS), "=r,r,r", [tl.reshape(twice, shape)], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        low, high = pair_codes(words, PAIR, BITS, 0, 0)
        found = tl.reshape(tl.join(low, high), shape)
    return found


@triton.jit
def _pair_product(words, right, PAIR: tl.constexpr, BITS: tl.constexpr, MINIMA: tl.constexpr, PACKED: tl.constexpr):
    """A pair's columns, or half of them, of W . x, in units where PACKED: float32 [rows of W, rows of x]."""
    upper: tl.constexpr = BITS == 4 and PAIR % 2 == 1
    unit: tl.constexpr = (_UNIT * (16 if upper else 1)) if PACKED else 1.0
    codes = _bare_codes(words, PAIR, BITS, PACKED)
    if MINIMA:
        out = tl.dot(codes, right)
    else:
        zero = tl.full([words.shape[0], 2 * words.shape[1]], -(1 << (BITS - 1)) * unit, tl.float16)
        out = tl.dot(codes, right, tl.dot(zero, right))
    if PACKED and upper:
        out *= 0.0625
    return out


@triton.jit
def _group_product(
    words,
    right,
    NUMBER: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A group of 32, 64 or 128 columns of W . x without its scale."""
    if GROUP == 32:
        # Columns 0 to 31 of a pair are of a row's first words, the others of its last.
        halves = tl.permute(tl.reshape(words, [words.shape[0], 2, WORDS // 2]), (0, 2, 1))
        first, second = tl.split(halves)
        part = first if NUMBER % 2 == 0 else second
        out = _pair_product(part, right[NUMBER], NUMBER // 2, BITS, MINIMA, PACKED)
    else:
        PAIRS: tl.constexpr = GROUP // 64
        out = _pair_product(words, right[NUMBER * PAIRS], NUMBER * PAIRS, BITS, MINIMA, PACKED)
        if PAIRS == 2:
            out += _pair_product(words, right[NUMBER * 2 + 1], NUMBER * 2 + 1, BITS, MINIMA, PACKED)
    return out


@triton.jit
def _group_sum(
    right,
    NUMBER: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS_OF_W: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A group's columns of x added up, in units, for each row of W: what minima are multiplied with."""
    ones = tl.full([ROWS_OF_W, SPAN], UNIT, tl.float16)
    out = tl.dot(ones, right[NUMBER * (GROUP // SPAN)])
    if GROUP > SPAN:
        out = tl.dot(ones, right[NUMBER * (GROUP // SPAN) + 1], out)
    return out


@triton.jit
def quant_few_rows(
    x,
    words,
    scales,
    bias,
    y,
    partial,
    counters,
    norms,
    rows,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """What `quant_tile_kernel` does, for groups of 32, 64 or 128 columns; DEPTH 1 or 2 steps ahead."""
    let_next_start(DEPENDENT)
    BLOCKS: tl.constexpr = BLOCK_N // ROWS
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    GROUPS: tl.constexpr = COLUMNS // GROUP
    SPAN: tl.constexpr = 32 if GROUP == 32 else 64
    SPANS: tl.constexpr = COLUMNS // SPAN
    UNIT: tl.constexpr = _UNIT if PACKED else 1.0
    steps = tl.cdiv(columns, COLUMNS)
    first, last = part_of(steps)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block * ROWS < width
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    side = scales_at(scales, steps, block_bytes, tl.where(at < width, at, 0))
    beyond = width // ROWS
    upper = side + beyond.to(tl.int64) * (block_bytes // 2)
    least_at = steps * (GROUPS * ROWS)
    own = group_scales(side, first, steps, GROUPS)
    now = _words_ahead(words, first, last, block_bytes, block, inside, BLOCKS)
    other, now2 = own, now
    least, least2 = own, own
    if MINIMA:
        least = group_scales(side + least_at, first, steps, GROUPS)
        if ACTIVATION != 0:
            least2 = group_scales(upper + least_at, first, steps, GROUPS)
    if ACTIVATION != 0:
        other = group_scales(upper, first, steps, GROUPS)
        now2 = _words_ahead(words, first, last, block_bytes, block + beyond, inside, BLOCKS)
    soon, soon2 = now, now2
    if DEPTH == 2:
        soon = _words_ahead(words, first + 1, last, block_bytes, block, inside, BLOCKS)
        if ACTIVATION != 0:
            soon2 = _words_ahead(words, first + 1, last, block_bytes, block + beyond, inside, BLOCKS)
    wait_for_previous(DEPENDENT)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    # Rows that are not there repeat the last: nothing is stored of them.
    x_at = x + tl.minimum(row, rows - 1).to(tl.int64)[None, :] * columns
    out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    right = _x_ahead(x_at, first * COLUMNS, columns, SPAN, SPANS)
    for step in tl.range(first, last, num_stages=1):
        next_right = _x_ahead(x_at, tl.minimum(step + 1, last - 1) * COLUMNS, columns, SPAN, SPANS)
        next_own = group_scales(side, step + 1, steps, GROUPS)
        ahead = _words_ahead(words, step + DEPTH, last, block_bytes, block, inside, BLOCKS)
        if ACTIVATION != 0:
            next_other = group_scales(upper, step + 1, steps, GROUPS)
            ahead2 = _words_ahead(words, step + DEPTH, last, block_bytes, block + beyond, inside, BLOCKS)
        if MINIMA:
            next_least = group_scales(side + least_at, step + 1, steps, GROUPS)
            if ACTIVATION != 0:
                next_least2 = group_scales(upper + least_at, step + 1, steps, GROUPS)
        for group in tl.static_range(GROUPS):
            product = _group_product(now, right, group, BITS, GROUP, MINIMA, PACKED)
            out += product * own[group].to(tl.float32)[:, None]
            if ACTIVATION != 0:
                product = _group_product(now2, right, group, BITS, GROUP, MINIMA, PACKED)
                up += product * other[group].to(tl.float32)[:, None]
            if MINIMA:
                added = _group_sum(right, group, GROUP, SPAN, BLOCK_N, UNIT)
                out += added * least[group].to(tl.float32)[:, None]
                if ACTIVATION != 0:
                    up += added * least2[group].to(tl.float32)[:, None]
        if MINIMA:
            least = next_least
            if ACTIVATION != 0:
                least2 = next_least2
        own, right = next_own, next_right
        if ACTIVATION != 0:
            other = next_other
        if DEPTH == 2:
            now, soon = soon, ahead
            if ACTIVATION != 0:
                now2, soon2 = soon2, ahead2
        else:
            now = ahead
            if ACTIVATION != 0:
                now2 = ahead2
    if PACKED:
        out *= _UNITS
        up *= _UNITS
    add_parts(
        out,
        up,
        partial,
        counters,
        norms,
        bias,
        y,
        at,
        row,
        rows,
        width,
        HAS_BIAS,
        ACTIVATION,
        NORM,
        BLOCK_M,
        BLOCK_N,
    )
