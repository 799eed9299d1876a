"""Linear: y = activation(x . W^T + bias) for few rows of x, bound by reading W once.

One row of x is a product of a matrix and a vector: each program takes a few rows of W and reads them in long
pieces. Up to 64 rows go through the tensor cores in tiles whose width follows the number of rows. More rows are
left to cuBLAS by the launcher.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate


@triton.jit
def _row_products(x, w, rows, inside, columns, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """float32 [BLOCK_N]: the rows `rows` of W times the vector x."""
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    base = w + rows.to(tl.int64)[:, None] * columns
    for start in range(0, columns, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        within = at < columns
        values = tl.load(base + at[None, :], mask=inside[:, None] & within[None, :], other=0.0)
        vector = tl.load(x + at, mask=within, other=0.0).to(tl.float32)
        total += values.to(tl.float32) * vector[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def linear_row_kernel(
    x,
    w,
    bias,
    y,
    width,
    columns,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One row: x [columns], y [width]. With an activation W is gate | up, each [width, columns].

    Grid (ceil(width / BLOCK_N)).
    """
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < width
    out = _row_products(x, w, at, inside, columns, BLOCK_N, BLOCK_K)
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != 0:
        up = _row_products(x, w, at + width, inside, columns, BLOCK_N, BLOCK_K)
        if HAS_BIAS:
            up += tl.load(bias + width + at, mask=inside, other=0.0).to(tl.float32)
        out = activate(out, ACTIVATION) * up
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def linear_tile_kernel(
    x,
    w,
    bias,
    y,
    rows,
    width,
    columns,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Up to BLOCK_M rows: x [rows, columns], y [rows, width]; grid (ceil(width / BLOCK_N)).

    With an activation W is gate | up, each [width, columns], and both products run side by side.
    """
    row = tl.arange(0, BLOCK_M)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, inside = row < rows, at < width
    left = x + row[:, None] * columns
    right = w + at.to(tl.int64)[None, :] * columns
    shift = width.to(tl.int64) * columns
    out = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, columns, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        within = k < columns
        a = tl.load(left + k[None, :], mask=row_inside[:, None] & within[None, :], other=0.0)
        b = tl.load(right + k[:, None], mask=inside[None, :] & within[:, None], other=0.0)
        out = tl.dot(a, b, out)
        if ACTIVATION != 0:
            c = tl.load(right + shift + k[:, None], mask=inside[None, :] & within[:, None], other=0.0)
            up = tl.dot(a, c, up)
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION != 0:
        if HAS_BIAS:
            up += tl.load(bias + width + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        out = activate(out, ACTIVATION) * up
    target = y + row.to(tl.int64)[:, None] * width + at[None, :]
    tl.store(target, out.to(y.dtype.element_ty), mask=row_inside[:, None] & inside[None, :])


@triton.jit
def bias_rows_kernel(bias, y, width, BLOCK: tl.constexpr):
    """y [rows, width] = bias in every row, for a product that is then added to it; grid (rows, width / BLOCK)."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(bias + at, mask=at < width, other=0.0)
    tl.store(y + tl.program_id(0).to(tl.int64) * width + at, value.to(y.dtype.element_ty), mask=at < width)
