"""QuantMatMul: y = activation(x . W^T + bias) with W in 4 or 8 bits in the layout cuda-planes, x in float16.

One row of x: codes become pairs of float16 by two operations a pair and are multiplied in pairs, so that unpacking
keeps up with the memory. Up to 512 rows: planes of codes become tiles for the tensor cores; the order of columns
within a product does not matter, so nothing is shuffled. More rows: `dequantise_kernel`, then cuBLAS.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate
from ops.triton.quant_rows import dot2, dot4, packed_pair, plane_codes, plane_columns


@triton.jit
def _activations(x, words, columns, PLANE: tl.constexpr, PLANES: tl.constexpr):
    """The activations that a plane's codes are multiplied by, float16."""
    at = plane_columns(words, PLANE, PLANES)
    return tl.load(x + at, mask=at < columns, other=0.0)


@triton.jit
def _products(
    x,
    words,
    scales,
    rows,
    inside,
    columns,
    groups,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """float32 [BLOCK_N]: rows of W times x. PACKED: by pairs of float16 in PTX, else code by code in float32."""
    PLANES: tl.constexpr = 32 // BITS
    UNIT: tl.constexpr = 64 if BITS == 4 else 256
    SPAN: tl.constexpr = GROUP // (4 * PLANES)
    row_words = groups * (GROUP // PLANES)
    place = rows.to(tl.int64)[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_W // 4], tl.float32)
    for start in range(0, row_words, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)
        mask = inside[:, None] & (at < row_words)[None, :]
        code = tl.load(words + place * (row_bytes // 4) + at[None, :], mask=mask, other=0)
        x0 = _activations(x, at, columns, 0, PLANES)
        x1 = _activations(x, at, columns, 1, PLANES)
        x2 = _activations(x, at, columns, 2, PLANES)
        x3 = _activations(x, at, columns, 3, PLANES)
        added = x0.to(tl.float32) + x1.to(tl.float32) + x2.to(tl.float32) + x3.to(tl.float32)
        if BITS == 4:
            x4 = _activations(x, at, columns, 4, PLANES)
            x5 = _activations(x, at, columns, 5, PLANES)
            x6 = _activations(x, at, columns, 6, PLANES)
            x7 = _activations(x, at, columns, 7, PLANES)
            added += x4.to(tl.float32) + x5.to(tl.float32) + x6.to(tl.float32) + x7.to(tl.float32)
        if PACKED:
            if BITS == 4:
                part = dot4(
                    code,
                    packed_pair(x0, x1)[None, :],
                    packed_pair(x2, x3)[None, :],
                    packed_pair(x4, x5)[None, :],
                    packed_pair(x6, x7)[None, :],
                    MINIMA,
                )
            else:
                part = dot2(code, packed_pair(x0, x1)[None, :], packed_pair(x2, x3)[None, :], MINIMA)
            factor = UNIT * 1.0
        else:
            part = plane_codes(code, 0, BITS).to(tl.float32) * x0.to(tl.float32)[None, :]
            part += plane_codes(code, 1, BITS).to(tl.float32) * x1.to(tl.float32)[None, :]
            part += plane_codes(code, 2, BITS).to(tl.float32) * x2.to(tl.float32)[None, :]
            part += plane_codes(code, 3, BITS).to(tl.float32) * x3.to(tl.float32)[None, :]
            if BITS == 4:
                part += plane_codes(code, 4, BITS).to(tl.float32) * x4.to(tl.float32)[None, :]
                part += plane_codes(code, 5, BITS).to(tl.float32) * x5.to(tl.float32)[None, :]
                part += plane_codes(code, 6, BITS).to(tl.float32) * x6.to(tl.float32)[None, :]
                part += plane_codes(code, 7, BITS).to(tl.float32) * x7.to(tl.float32)[None, :]
            if not MINIMA:
                part -= (1 << (BITS - 1)) * added[None, :]
            factor = 1.0
        # Four words make a superblock, which lies within one group: one scale for their sum.
        block = start // 4 + tl.arange(0, BLOCK_W // 4)
        side = place * (row_bytes // 2) + row_words * 2 + (block // SPAN)[None, :]
        known = inside[:, None] & (block < row_words // 4)[None, :]
        scale = tl.load(scales + side, mask=known, other=0.0).to(tl.float32)
        total += tl.sum(tl.reshape(part, [BLOCK_N, BLOCK_W // 4, 4]), axis=2) * (scale * factor)
        if MINIMA:
            low = tl.load(scales + side + groups, mask=known, other=0.0).to(tl.float32)
            total += low * tl.sum(tl.reshape(added, [BLOCK_W // 4, 4]), axis=1)[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def quant_row_kernel(
    x,
    words,
    scales,
    bias,
    y,
    width,
    columns,
    groups,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One row: x [columns], y [width]; `words` and `scales` are the same address. Grid (ceil(width / BLOCK_N)).

    With an activation W is gate | up, each of `width` rows.
    """
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < width
    out = _products(
        x, words, scales, at, inside, columns, groups, row_bytes, BITS, GROUP, MINIMA, PACKED, BLOCK_N, BLOCK_W
    )
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != 0:
        rows = at + width
        up = _products(
            x,
            words,
            scales,
            rows,
            inside,
            columns,
            groups,
            row_bytes,
            BITS,
            GROUP,
            MINIMA,
            PACKED,
            BLOCK_N,
            BLOCK_W,
        )
        if HAS_BIAS:
            up += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)
        out = activate(out, ACTIVATION) * up
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _weights(code, scale, low, PLANE: tl.constexpr, BITS: tl.constexpr, MINIMA: tl.constexpr):
    """A plane of codes as weights in float16."""
    value = plane_codes(code, PLANE, BITS).to(tl.float16)
    return value * scale + low if MINIMA else (value - (1 << (BITS - 1))) * scale


@triton.jit
def _plane_pair(words, PAIR: tl.constexpr, BITS: tl.constexpr):
    """1024 + code of the planes 2 PAIR and 2 PAIR + 1, float16: a code is put where the last bits of 1024 are."""
    if BITS == 4:
        both = ((words >> (4 * PAIR)) & 0x000F000F) | 0x64006400
        low, high = both.to(tl.int16), (both >> 16).to(tl.int16)
    else:
        low = (((words >> (16 * PAIR)) & 0xFF) | 0x6400).to(tl.int16)
        high = (((words >> (16 * PAIR + 8)) & 0xFF) | 0x6400).to(tl.int16)
    return low.to(tl.float16, bitcast=True), high.to(tl.float16, bitcast=True)


@triton.jit
def _activation_tile(x, rows, row_inside, word, columns, PLANE: tl.constexpr, PLANES: tl.constexpr):
    """A plane's activations [words, rows], float16."""
    column = plane_columns(word, PLANE, PLANES)
    mask = (column < columns)[:, None] & row_inside[None, :]
    return tl.load(x + rows[None, :] * columns + column[:, None], mask=mask, other=0.0)


@triton.jit
def _tile_product(
    low, high, x0, x1, scale, least, total, WHOLE: tl.constexpr, MINIMA: tl.constexpr, BITS: tl.constexpr
):
    """total + the products of two planes; unless one scale serves the whole tile, weights are scaled first."""
    ZERO: tl.constexpr = 1024 if MINIMA else 1024 + (1 << (BITS - 1))
    first, second = low - ZERO, high - ZERO
    if not WHOLE:
        first, second = first * scale, second * scale
        if MINIMA:
            first, second = first + least, second + least
    return tl.dot(second, x1, tl.dot(first, x0, total))


@triton.jit
def quant_tile_kernel(
    x,
    words,
    scales,
    bias,
    y,
    rows,
    width,
    columns,
    groups,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """A few rows: x [rows, columns], y [rows, width]; grid (ceil(width / BLOCK_N), ceil(rows / BLOCK_M)).

    Weights are the left operand, so that they go from registers, where they are unpacked, into the tensor cores.
    Where a step along K lies within one group, products are of plain codes and their sums are scaled.
    """
    PLANES: tl.constexpr = 32 // BITS
    SPAN: tl.constexpr = GROUP // PLANES
    WHOLE: tl.constexpr = (SPAN % BLOCK_W == 0) and not MINIMA
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, inside = row < rows, at < width
    row_words = groups * SPAN
    place = at.to(tl.int64)[:, None]
    code_at = words + place * (row_bytes // 4)
    side_at = scales + place * (row_bytes // 2) + row_words * 2
    code_shift, side_shift = width.to(tl.int64) * (row_bytes // 4), width.to(tl.int64) * (row_bytes // 2)
    out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, row_words, BLOCK_W):
        word = start + tl.arange(0, BLOCK_W)
        known = inside[:, None] & (word < row_words)[None, :]
        code = tl.load(code_at + word[None, :], mask=known, other=0)
        if WHOLE:
            group = start // SPAN + tl.zeros([1], tl.int32)
            scale = tl.load(side_at + group[None, :], mask=inside[:, None], other=0.0)
            part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        else:
            group = word // SPAN
            scale = tl.load(side_at + group[None, :], mask=known, other=0.0)
            part = out
        least = scale
        if MINIMA:
            least = tl.load(side_at + groups + group[None, :], mask=known, other=0.0)
        if ACTIVATION != 0:
            code2 = tl.load(code_at + code_shift + word[None, :], mask=known, other=0)
            if WHOLE:
                scale2 = tl.load(side_at + side_shift + group[None, :], mask=inside[:, None], other=0.0)
                part2 = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            else:
                scale2 = tl.load(side_at + side_shift + group[None, :], mask=known, other=0.0)
                part2 = up
            least2 = scale2
            if MINIMA:
                least2 = tl.load(side_at + side_shift + groups + group[None, :], mask=known, other=0.0)
        for pair in tl.static_range(PLANES // 2):
            x0 = _activation_tile(x, row, row_inside, word, columns, 2 * pair, PLANES)
            x1 = _activation_tile(x, row, row_inside, word, columns, 2 * pair + 1, PLANES)
            low, high = _plane_pair(code, pair, BITS)
            part = _tile_product(low, high, x0, x1, scale, least, part, WHOLE, MINIMA, BITS)
            if ACTIVATION != 0:
                low, high = _plane_pair(code2, pair, BITS)
                part2 = _tile_product(low, high, x0, x1, scale2, least2, part2, WHOLE, MINIMA, BITS)
        out = out + part * scale.to(tl.float32) if WHOLE else part
        if ACTIVATION != 0:
            up = up + part2 * scale2.to(tl.float32) if WHOLE else part2
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION != 0:
        if HAS_BIAS:
            up += tl.load(bias + width + at, mask=inside, other=0.0).to(tl.float32)[:, None]
        out = activate(out, ACTIVATION) * up
    target = y + row.to(tl.int64)[None, :] * width + at[:, None]
    tl.store(target, out.to(y.dtype.element_ty), mask=inside[:, None] & row_inside[None, :])


@triton.jit
def dequantise_kernel(
    words,
    scales,
    out,
    columns,
    groups,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """W as float16 [rows of W, columns]; grid (rows of W, ceil(words of a row / BLOCK_W))."""
    PLANES: tl.constexpr = 32 // BITS
    row = tl.program_id(0).to(tl.int64)
    row_words = groups * (GROUP // PLANES)
    word = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    known = word < row_words
    code = tl.load(words + row * (row_bytes // 4) + word, mask=known, other=0)
    side = scales + row * (row_bytes // 2) + row_words * 2 + word // (GROUP // PLANES)
    scale = tl.load(side, mask=known, other=0.0)
    low = scale
    if MINIMA:
        low = tl.load(side + groups, mask=known, other=0.0)
    for plane in tl.static_range(PLANES):
        column = plane_columns(word, plane, PLANES)
        weight = _weights(code, scale, low, plane, BITS, MINIMA)
        tl.store(out + row * columns + column, weight, mask=known & (column < columns))
