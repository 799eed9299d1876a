"""QuantMatMul for up to 8 rows of x: a program takes 16 rows of W, its warps split the columns and add up within
it.

The tensor cores do this too: with the layout's fragments that costs fewer operations a code than products in
registers would. For forms whose scale serves 64 columns and that have no minima.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import fetch, let_next_start, wait_for_previous
from ops.triton.few_rows import store_result
from ops.triton.fragments import ROWS, STEP, WORDS, pair_weights

#: Rows of a program, and words of one warp's rows in a quarter of a step.
_OWN = tl.constexpr(16)
_PIECE = tl.constexpr(128)


@triton.jit
def _step_scales(side, step, steps, GROUPS: tl.constexpr):
    """float16 [PARTS, 16] for each group of the steps `step` [PARTS], zero after the last."""
    at = side + step[:, None] * (GROUPS * ROWS)
    found = (tl.load(at, mask=(step < steps)[:, None], other=0.0),)
    for group in tl.static_range(1, GROUPS):
        more = tl.load(at + group * ROWS, mask=(step < steps)[:, None], other=0.0)
        found = found + (more,)  # noqa: RUF005  (Triton knows no unpacking)
    return found


@triton.jit
def _own_words(start, step, steps, PARTS: tl.constexpr):
    """int32 [PARTS, 16, 32]: the words of 16 rows in the steps `step` [PARTS]. See fragments.step_words."""
    piece = tl.arange(0, 4)[:, None, None] * (4 * _PIECE)
    at = start + piece + step[None, :, None] * STEP + tl.arange(0, _PIECE)[None, None, :]
    found = tl.load(at, mask=(step < steps)[None, :, None], other=0)
    found = tl.reshape(found, [4, PARTS, 8, 4, 2, 2])
    return tl.reshape(tl.permute(found, (1, 5, 2, 0, 4, 3)), [PARTS, _OWN, WORDS])


@triton.jit
def _fetch_words(start, step, steps, DEPENDENT: tl.constexpr):
    """Ask for what `_own_words` reads."""
    piece = tl.arange(0, 4)[:, None, None] * (4 * _PIECE) + tl.arange(0, 4)[None, None, :] * 32
    fetch(start + piece + tl.minimum(step, steps - 1)[None, :, None] * STEP, DEPENDENT)


@triton.jit
def quant_row_kernel(
    x,
    words,
    scales,
    bias,
    y,
    rows,
    width,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [rows, columns], y [rows, width]; `words` and `scales` are the same address. Grid (ceil(width / 16)).

    With an activation W is gate | up, each of `width` rows, a multiple of 64.
    """
    let_next_start(DEPENDENT)
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    GROUPS: tl.constexpr = COLUMNS // GROUP
    EACH: tl.constexpr = GROUP // 64
    ZERO: tl.constexpr = 1 << (BITS - 1)
    first_row = tl.program_id(0) * _OWN
    steps = tl.cdiv(columns, COLUMNS)
    part = tl.arange(0, PARTS)
    block = (first_row // ROWS).to(tl.int64)
    own = words + block * (block_bytes // 4) + first_row % ROWS * 8
    side = scales + block * (block_bytes // 2) + steps * (2 * STEP) + first_row % ROWS
    side = side + tl.arange(0, _OWN)[None, :]
    beyond = (width // ROWS).to(tl.int64)
    other, other_side = own + beyond * (block_bytes // 4), side + beyond * (block_bytes // 2)
    scale = _step_scales(side, part, steps, GROUPS)
    scale2 = scale
    for start in tl.static_range(0, 2 * PARTS, PARTS):
        _fetch_words(own, start + part, steps, DEPENDENT)
        if ACTIVATION != 0:
            _fetch_words(other, start + part, steps, DEPENDENT)
    if ACTIVATION != 0:
        scale2 = _step_scales(other_side, part, steps, GROUPS)
    wait_for_previous(DEPENDENT)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, 64)
    x_at = x + row[None, None, :] * columns
    out = tl.zeros([PARTS, _OWN, BLOCK_M], tl.float32)
    up = tl.zeros([PARTS, _OWN, BLOCK_M], tl.float32)
    for start in tl.range(0, steps, PARTS, num_stages=STAGES):
        step = start + part
        ahead = _step_scales(side, step + PARTS, steps, GROUPS)
        code = _own_words(own, step, steps, PARTS)
        if ACTIVATION != 0:
            ahead2 = _step_scales(other_side, step + PARTS, steps, GROUPS)
            code2 = _own_words(other, step, steps, PARTS)
        for group in tl.static_range(GROUPS):
            product = tl.zeros([PARTS, _OWN, BLOCK_M], tl.float32)
            product2 = tl.zeros([PARTS, _OWN, BLOCK_M], tl.float32)
            for pair in tl.static_range(group * EACH, (group + 1) * EACH):
                column = step[:, None] * COLUMNS + pair * 64 + k[None, :]
                inside = (row < rows)[None, None, :] & (column < columns)[:, :, None]
                right = tl.load(x_at + column[:, :, None], mask=inside, other=0.0)
                product = tl.dot(pair_weights(code, pair, BITS, ZERO, PACKED), right, product)
                if ACTIVATION != 0:
                    product2 = tl.dot(pair_weights(code2, pair, BITS, ZERO, PACKED), right, product2)
            out += product * scale[group].to(tl.float32)[:, :, None]
            if ACTIVATION != 0:
                up += product2 * scale2[group].to(tl.float32)[:, :, None]
        scale = ahead
        if ACTIVATION != 0:
            scale2 = ahead2
    at = first_row + tl.arange(0, _OWN)
    total, total2 = tl.sum(out, axis=0), tl.sum(up, axis=0)
    store_result(total, total2, bias, y, at, row, rows, width, HAS_BIAS, ACTIVATION)
