"""QuantGather: rows of weights in the layout cuda-planes, dequantised: the embedding from a tied head's bytes."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.quant_rows import plane_codes, plane_columns


@triton.jit
def quant_gather_kernel(
    words,
    scales,
    ids,
    y,
    rows,
    columns,
    groups,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """y [ids, columns] float16; an id outside [0, rows) gives zeros. Grid (ids, ceil(words of a row / BLOCK_W))."""
    PLANES: tl.constexpr = 32 // BITS
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + token)
    real = (row >= 0) & (row < rows)
    row_words = groups * (GROUP // PLANES)
    word = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    known = (word < row_words) & real
    code = tl.load(words + row * (row_bytes // 4) + word, mask=known, other=0)
    side = scales + row * (row_bytes // 2) + row_words * 2 + word // (GROUP // PLANES)
    scale = tl.load(side, mask=known, other=0.0).to(tl.float32)
    low = scale
    if MINIMA:
        low = tl.load(side + groups, mask=known, other=0.0).to(tl.float32)
    for plane in tl.static_range(PLANES):
        column = plane_columns(word, plane, PLANES)
        value = plane_codes(code, plane, BITS).to(tl.float32)
        value = value * scale + low if MINIMA else (value - (1 << (BITS - 1))) * scale
        tl.store(y + token * columns + column, value.to(y.dtype.element_ty), mask=column < columns)
