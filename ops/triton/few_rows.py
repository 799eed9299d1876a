"""What products of up to 64 rows share: the parts that programs take along K, their sum, and the epilogue.

W is the left operand: the rows of W fill the tensor cores' tall side, those of x the narrow one. Programs of one
tile split the steps along K by the product's shape alone, so that a row's bits do not depend on the number of rows.
Each leaves its sums in float32; the last to come adds them up in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate


@triton.jit
def part_of(steps):
    """First and last (exclusive) of the steps that this program takes: part program_id(1) of num_programs(1)."""
    each = tl.cdiv(steps, tl.num_programs(1))
    first = tl.program_id(1) * each
    return first, tl.minimum(first + each, steps)


@triton.jit
def store_result(
    out,
    up,
    bias,
    y,
    at,
    row,
    rows,
    width,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """y[row, at] = activation(out + bias) * (up + bias), or out + bias; out and up [at, row] in float32."""
    inside = at < width
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION != 0:
        if HAS_BIAS:
            up += tl.load(bias + width + at, mask=inside, other=0.0).to(tl.float32)[:, None]
        out = activate(out, ACTIVATION) * up
    target = y + row.to(tl.int64)[None, :] * width + at[:, None]
    tl.store(target, out.to(y.dtype.element_ty), mask=inside[:, None] & (row < rows)[None, :])


@triton.jit
def _add_four(total, parts_at, start, count, SIZE: tl.constexpr):
    """total + the parts start to start + 3, of those that there are."""
    first = tl.load(parts_at + start * SIZE, cache_modifier=".cg")
    second = tl.load(parts_at + (start + 1) * SIZE, mask=start + 1 < count, other=0.0, cache_modifier=".cg")
    third = tl.load(parts_at + (start + 2) * SIZE, mask=start + 2 < count, other=0.0, cache_modifier=".cg")
    fourth = tl.load(parts_at + (start + 3) * SIZE, mask=start + 3 < count, other=0.0, cache_modifier=".cg")
    return total + first + second + third + fourth


@triton.jit
def add_parts(
    out,
    up,
    partial,
    counters,
    bias,
    y,
    at,
    row,
    rows,
    width,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`store_result` of the sum over the programs of a tile.

    partial: float32 [tiles, parts, BLOCK_N, BLOCK_M], twice as many parts with an activation; counters: int32
    [tiles], zero before and after. Tiles are counted over program_id(0) and program_id(2).
    """
    parts = tl.num_programs(1)
    if parts == 1:
        store_result(out, up, bias, y, at, row, rows, width, HAS_BIAS, ACTIVATION)
    else:
        SIZE: tl.constexpr = BLOCK_N * BLOCK_M
        SIDES: tl.constexpr = 2 if ACTIVATION != 0 else 1
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        place = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        of_tile = partial + tile.to(tl.int64) * (parts * SIDES * SIZE) + place
        own = of_tile + tl.program_id(1) * (SIDES * SIZE)
        tl.store(own, out, cache_modifier=".cg")
        if ACTIVATION != 0:
            tl.store(own + SIZE, up, cache_modifier=".cg")
        tl.debug_barrier()  # all threads have written before one of them says so
        came = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if came == parts - 1:
            out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            up = out
            # Four at a time are on their way together.
            for start in range(0, parts, 4):
                out = _add_four(out, of_tile, start, parts, SIDES * SIZE)
                if ACTIVATION != 0:
                    up = _add_four(up, of_tile + SIZE, start, parts, SIDES * SIZE)
            tl.store(counters + tile, 0)
            store_result(out, up, bias, y, at, row, rows, width, HAS_BIAS, ACTIVATION)
