"""Linear: y = activation(x . W^T + bias) for few rows of x, bound by reading W once.

One row of x is a product of a matrix and a vector: each program takes a few rows of W and reads them in long
pieces. Up to 64 rows go through the tensor cores, and programs split the columns (`ops.triton.few_rows`). More rows
are left to cuBLAS by the launcher.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate
from ops.triton.dependent import fetch, let_next_start, wait_for_previous
from ops.triton.few_rows import PLAIN, add_parts, part_of

#: Elements of W in a cache line.
_LINE = tl.constexpr(64)


@triton.jit
def _row_values(w, rows, inside, start, columns, BLOCK_K: tl.constexpr):
    """[rows, BLOCK_K] of W from column `start` on."""
    at = start + tl.arange(0, BLOCK_K)
    mask = inside[:, None] & (at < columns)[None, :]
    return tl.load(w + rows.to(tl.int64)[:, None] * columns + at[None, :], mask=mask, other=0.0)


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
    DEPENDENT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One row: x [columns], y [width]. With an activation W is gate | up, each [width, columns].

    Grid (ceil(width / BLOCK_N)). The next columns of W are always on their way, the first before x is there.
    """
    let_next_start(DEPENDENT)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < width
    values = _row_values(w, at, inside, 0, columns, BLOCK_K)
    values2 = values
    if ACTIVATION != 0:
        values2 = _row_values(w, at + width, inside, 0, columns, BLOCK_K)
    wait_for_previous(DEPENDENT)
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    total2 = total
    for start in range(0, columns, BLOCK_K):
        ahead = _row_values(w, at, inside, start + BLOCK_K, columns, BLOCK_K)
        if ACTIVATION != 0:
            ahead2 = _row_values(w, at + width, inside, start + BLOCK_K, columns, BLOCK_K)
        k = start + tl.arange(0, BLOCK_K)
        vector = tl.load(x + k, mask=k < columns, other=0.0).to(tl.float32)[None, :]
        total += values.to(tl.float32) * vector
        values = ahead
        if ACTIVATION != 0:
            total2 += values2.to(tl.float32) * vector
            values2 = ahead2
    out = tl.sum(total, axis=1)
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != 0:
        up = tl.sum(total2, axis=1)
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
    partial,
    counters,
    rows,
    width,
    columns,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [rows, columns], y [rows, width]; see `add_parts` for partial and counters.

    Grid (ceil(width / BLOCK_N), parts, ceil(rows / BLOCK_M)). With an activation W is gate | up, each [width,
    columns], and both products run side by side.
    """
    let_next_start(DEPENDENT)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, inside = row < rows, at < width
    first, last = part_of(tl.cdiv(columns, BLOCK_K))
    left = w + at.to(tl.int64)[:, None] * columns
    right = x + row.to(tl.int64)[None, :] * columns
    shift = width.to(tl.int64) * columns
    line = tl.arange(0, BLOCK_K // _LINE) * _LINE
    line = tl.minimum(first * BLOCK_K + line, columns - 1)
    fetch(w + tl.where(inside, at, 0).to(tl.int64)[:, None] * columns + line[None, :], DEPENDENT)
    if ACTIVATION != 0:
        fetch(w + tl.where(inside, at + width, 0).to(tl.int64)[:, None] * columns + line[None, :], DEPENDENT)
    wait_for_previous(DEPENDENT)
    out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        within = k < columns
        a = tl.load(left + k[None, :], mask=inside[:, None] & within[None, :], other=0.0)
        b = tl.load(right + k[:, None], mask=row_inside[None, :] & within[:, None], other=0.0)
        out = tl.dot(a, b, out)
        if ACTIVATION != 0:
            a = tl.load(left + shift + k[None, :], mask=inside[:, None] & within[None, :], other=0.0)
            up = tl.dot(a, b, up)
    add_parts(
        out,
        up,
        partial,
        counters,
        None,
        bias,
        y,
        at,
        row,
        rows,
        width,
        HAS_BIAS,
        ACTIVATION,
        PLAIN,
        BLOCK_M,
        BLOCK_N,
    )


@triton.jit
def bias_rows_kernel(bias, y, width, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """y [rows, width] = bias in every row, for a product that is then added to it; grid (rows, width / BLOCK)."""
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(bias + at, mask=at < width, other=0.0)
    tl.store(y + tl.program_id(0).to(tl.int64) * width + at, value.to(y.dtype.element_ty), mask=at < width)
