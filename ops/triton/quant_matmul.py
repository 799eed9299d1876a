"""QuantMatMul: y = activation(x . W^T + bias) with W in 4 or 8 bits in the layout cuda-fragments, x in float16.

Few rows of x go through the tensor cores: codes become fragments in registers by two operations a pair, programs
split the columns. Where a tile's columns lie within one group, products are of plain codes and their sums are
scaled, else weights are scaled first. One row and a few have ways of their own (`ops.triton.quant_one`,
`ops.triton.quant_few`). More rows than the tuning table serves: `dequantise_kernel`, then cuBLAS.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import fetch, let_next_start, wait_for_previous
from ops.triton.few_rows import add_parts, part_of
from ops.triton.fragments import ROWS, STEP, WORDS, pair_weights, scales_at, step_words
from ops.triton.quant_few import group_scales, quant_few_rows
from ops.triton.quant_one import quant_one_row

#: Steps of codes that are asked for while the kernel before ends.
AHEAD = tl.constexpr(3)


@triton.jit
def _group_weights(words, NUMBER: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr):
    """The codes of a step's group of 64 or 128 columns, less their zero: float16 [n, GROUP]."""
    ZERO: tl.constexpr = 1 << (BITS - 1)
    if GROUP == 64:
        weights = pair_weights(words, NUMBER, BITS, ZERO, PACKED)
    else:
        first = pair_weights(words, 2 * NUMBER, BITS, ZERO, PACKED)
        second = pair_weights(words, 2 * NUMBER + 1, BITS, ZERO, PACKED)
        both = tl.permute(tl.join(first, second), (0, 2, 1))
        weights = tl.reshape(both, [words.shape[0], 128])
    return weights


@triton.jit
def scaled_weights(
    words,
    side,
    group,
    least_at,
    PAIR: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A pair's columns as weights, float16 [n, 64]; `group` is the group of the first."""
    SPAN: tl.constexpr = GROUP if GROUP < 64 else 64
    shape: tl.constexpr = [words.shape[0], 64 // SPAN, SPAN]
    codes = pair_weights(words, PAIR, BITS, 0 if MINIMA else 1 << (BITS - 1), PACKED)
    at = side[:, None] + (group + tl.arange(0, 64 // SPAN))[None, :] * ROWS
    found = tl.reshape(codes, shape) * tl.load(at)[:, :, None]
    if MINIMA:
        found += tl.load(at + least_at)[:, :, None]
    return tl.reshape(found, [words.shape[0], 64])


@triton.jit
def _fetch_step(words, step, block_bytes, block, inside, DEPENDENT: tl.constexpr):
    """Ask for the codes of one step."""
    line = step * STEP + tl.arange(0, STEP // 32) * 32
    start = tl.where(inside, block, 0).to(tl.int64) * (block_bytes // 4)
    fetch(words + start[:, None] + line[None, :], DEPENDENT)


@triton.jit
def _staged_rows(
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
    STAGES: tl.constexpr,
):
    """What `quant_tile_kernel` does, codes and x in STAGES steps of shared memory."""
    let_next_start(DEPENDENT)
    BLOCKS: tl.constexpr = BLOCK_N // ROWS
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    GROUPS: tl.constexpr = COLUMNS // GROUP
    WHOLE: tl.constexpr = GROUP >= 64 and not MINIMA
    steps = tl.cdiv(columns, COLUMNS)
    first, last = part_of(steps)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block * ROWS < width
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # The scales of rows that are not there: any that are.
    side = scales_at(scales, steps, block_bytes, tl.where(at < width, at, 0))
    least_at = steps * (GROUPS * ROWS)
    beyond = width // ROWS
    upper = side + beyond.to(tl.int64) * (block_bytes // 2)
    own, other = (side,), (side,)
    if WHOLE:
        own = group_scales(side, first, steps, GROUPS)
        if ACTIVATION != 0:
            other = group_scales(upper, first, steps, GROUPS)
    for step in tl.static_range(AHEAD):
        _fetch_step(words, tl.minimum(first + step, last - 1), block_bytes, block, inside, DEPENDENT)
        if ACTIVATION != 0:
            _fetch_step(words, tl.minimum(first + step, last - 1), block_bytes, block + beyond, inside, DEPENDENT)
    wait_for_previous(DEPENDENT)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    x_at = x + row.to(tl.int64)[None, :] * columns
    x_inside = (row < rows)[None, :]
    out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        # Scales are asked for a step ahead: nothing else hides how long they take.
        if WHOLE:
            next_own = group_scales(side, step + 1, steps, GROUPS)
            if ACTIVATION != 0:
                next_other = group_scales(upper, step + 1, steps, GROUPS)
        start = step * COLUMNS
        code = step_words(words, step, block_bytes, block, inside, BLOCKS)
        if ACTIVATION != 0:
            code2 = step_words(words, step, block_bytes, block + beyond, inside, BLOCKS)
        if WHOLE:
            for group in tl.static_range(GROUPS):
                k = start + group * GROUP + tl.arange(0, GROUP)
                right = tl.load(x_at + k[:, None], mask=x_inside & (k < columns)[:, None], other=0.0)
                product = tl.dot(_group_weights(code, group, BITS, GROUP, PACKED), right)
                out += product * own[group].to(tl.float32)[:, None]
                if ACTIVATION != 0:
                    product = tl.dot(_group_weights(code2, group, BITS, GROUP, PACKED), right)
                    up += product * other[group].to(tl.float32)[:, None]
        else:
            for pair in tl.static_range(16 // BITS):
                k = start + pair * 64 + tl.arange(0, 64)
                group = (start + pair * 64) // GROUP
                right = tl.load(x_at + k[:, None], mask=x_inside & (k < columns)[:, None], other=0.0)
                left = scaled_weights(code, side, group, least_at, pair, BITS, GROUP, MINIMA, PACKED)
                out = tl.dot(left, right, out)
                if ACTIVATION != 0:
                    left = scaled_weights(code2, upper, group, least_at, pair, BITS, GROUP, MINIMA, PACKED)
                    up = tl.dot(left, right, up)
        if WHOLE:
            own = next_own
            if ACTIVATION != 0:
                other = next_other
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


@triton.jit
def quant_tile_kernel(
    x,
    words,
    scales,
    bias,
    y,
    partial,
    counters,
    squares,
    tiles,
    residual,
    gain,
    unit,
    total,
    epsilon,
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
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [rows, columns], y [rows, width]; `words` and `scales` are the same address; see `add_parts` and
    `load_beside` for the rest.

    Grid (ceil(width / BLOCK_N), parts, ceil(rows / BLOCK_M)). With an activation W is gate | up, each of `width`
    rows, a multiple of 64. DEPTH: 0, or the steps that words are ahead in registers (`ops.triton.quant_few`).
    SPLIT: 0, or for one row, whose grid has no parts, the warps that share the columns of 16 rows of W
    (`ops.triton.quant_one`). WHOLE: columns are known to be a multiple of 32.
    """
    norms = (squares, tiles, residual, gain, unit, total, epsilon)
    if SPLIT > 0:
        quant_one_row(
            x,
            words,
            scales,
            bias,
            y,
            norms,
            width,
            columns,
            block_bytes,
            BITS,
            GROUP,
            MINIMA,
            PACKED,
            HAS_BIAS,
            ACTIVATION,
            NORM,
            DEPENDENT,
            BLOCK_N,
            DEPTH,
            SPLIT,
            WHOLE,
        )
    elif DEPTH > 0:
        quant_few_rows(
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
            BITS,
            GROUP,
            MINIMA,
            PACKED,
            HAS_BIAS,
            ACTIVATION,
            NORM,
            DEPENDENT,
            BLOCK_M,
            BLOCK_N,
            DEPTH,
        )
    else:
        _staged_rows(
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
            BITS,
            GROUP,
            MINIMA,
            PACKED,
            HAS_BIAS,
            ACTIVATION,
            NORM,
            DEPENDENT,
            BLOCK_M,
            BLOCK_N,
            STAGES,
        )


@triton.jit
def dequantise_kernel(
    words,
    scales,
    out,
    height,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """W as float16 [height, columns]; grid (blocks of W, steps)."""
    let_next_start(DEPENDENT)
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    block, step = tl.program_id(0) + tl.arange(0, 1), tl.program_id(1)
    steps = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    side = scales_at(scales, steps, block_bytes, row)
    least_at = tl.cdiv(steps * COLUMNS, GROUP) * ROWS
    code = step_words(words, step, block_bytes, block, block >= 0, 1)
    wait_for_previous(DEPENDENT)
    for pair in tl.static_range(16 // BITS):
        column = step * COLUMNS + pair * 64 + tl.arange(0, 64)
        group = (step * COLUMNS + pair * 64) // GROUP
        weights = scaled_weights(code, side, group, least_at, pair, BITS, GROUP, MINIMA, PACKED)
        target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(target, weights, mask=(row < height)[:, None] & (column < columns)[None, :])
