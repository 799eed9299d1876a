"""What products of up to 64 rows share: the parts that programs take along K, their sum, and the epilogue.

W is the left operand: the rows of W fill the tensor cores' tall side, those of x the narrow one. Programs of one
tile split the steps along K by the product's shape alone, so that a row's bits do not depend on the number of rows.
Each leaves its sums in float32; the last to come adds them up in their order.

Between products with weights in few bits a norm of up to 32 rows is no kernel of its own. The product before it
(NORM is ADDED) adds the residual and leaves y = total * gain, and for each tile of its columns and each row a
share of the mean square. The product behind (SCALED) adds up the shares in their order and scales its sums: the
root is the same for all columns of a row, and is wanted last.

`gain` may be large where `total` is, and float16 ends at 65504: y is multiplied by `unit`, the power of two that
takes the largest gain below 1, so that |y| <= |total|, and the shares by its square. What is lost below 2^-14,
where float16 has fewer digits, is at most 2^-25 of an element: no more than rounding loses of one of 2^-14. So a
row is as exact as its norm was, unless its own root mean square, times gain and unit, is far below 2^-14.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate

#: What a product does about the norms around it: nothing, scale what it has of x, or add a residual and leave the
#: norm's mean squares.
PLAIN = tl.constexpr(0)
SCALED = tl.constexpr(1)
ADDED = tl.constexpr(2)
#: Rows that a tile's shares have room for: for more of them a norm's own kernel costs less than what is done here.
ROOM = tl.constexpr(32)


@triton.constexpr_function
def _chunk(rows: int) -> int:
    """Shares of a row that are read together: those of 4,096 columns, in tiles of 64 or for one row of 16."""
    return 256 if rows == 1 else 64


@triton.jit
def part_of(steps):
    """First and last (exclusive) of the steps that this program takes: part program_id(1) of num_programs(1)."""
    each = tl.cdiv(steps, tl.num_programs(1))
    first = tl.program_id(1) * each
    return first, tl.minimum(first + each, steps)


@triton.jit
def _shares(norms, start, row):
    """A chunk of each row's shares of the mean square from tile `start` on, [chunk, rows of x]; zero for none."""
    tile = start + tl.arange(0, _chunk(row.shape[0]))
    at = norms[0] + tile[:, None] * ROOM + row[None, :]
    mask = (tile < norms[1])[:, None]
    if row.shape[0] > ROOM:
        mask = mask & (row < ROOM)[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def load_beside(norms, at, row, rows, width, NORM: tl.constexpr):
    """What `store_result` needs besides the sums, on its way early: the first shares, or the residual and gain.

    norms: (squares, tiles, residual, gain, unit, total, epsilon), or None with PLAIN. squares float32 [tiles, 32],
    read or written; residual and total [rows, width]; gain [width]; unit float32 [1].
    """
    if NORM == SCALED:
        first = _shares(norms, 0, row)
        second = first
    elif NORM == ADDED:
        inside = at < width
        mask = inside[:, None] & (row < rows)[None, :]
        first = tl.load(norms[2] + row.to(tl.int64)[None, :] * width + at[:, None], mask=mask, other=0.0)
        second = tl.load(norms[3] + at, mask=inside, other=0.0)
    else:
        first = at
        second = row
    return first, second


@triton.jit
def _row_scales(norms, shares, row):
    """1 / root mean square of each row."""
    CHUNK: tl.constexpr = _chunk(row.shape[0])
    for start in range(CHUNK, norms[1], CHUNK):
        shares += _shares(norms, start, row)
    return tl.rsqrt(tl.sum(shares, axis=0))


@triton.jit
def _store_added(out, beside, norms, y, at, row, rows, width, BLOCK_N: tl.constexpr):
    """total = out + residual, rounded to its type as the next layer reads it; y and the tile's shares of it."""
    squares, unit_at, total, epsilon = norms[0], norms[4], norms[5], norms[6]
    residual, gain = beside
    mask = (at < width)[:, None] & (row < rows)[None, :]
    place = row.to(tl.int64)[None, :] * width + at[:, None]
    rounded = (out + residual.to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=mask)
    value = tl.where(mask, rounded.to(tl.float32), 0.0)
    unit = tl.load(unit_at)
    tl.store(y + place, (value * (gain.to(tl.float32) * unit)[:, None]).to(y.dtype.element_ty), mask=mask)
    tile = tl.program_id(0)
    count = tl.minimum(width - tile * BLOCK_N, BLOCK_N).to(tl.float32)
    share = (tl.sum(value * value, axis=0) + epsilon * count) * (unit * unit / width)
    tl.store(squares + tile * ROOM + row, share, mask=row < rows)


@triton.jit
def store_result(
    out,
    up,
    beside,
    norms,
    bias,
    y,
    at,
    row,
    rows,
    width,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """y[row, at] = activation(out + bias) * (up + bias), or out + bias; out and up [at, row] in float32.

    beside: of `load_beside`. With NORM out and up are scaled first, or the residual is added last.
    """
    inside = at < width
    if NORM == SCALED:
        scale = _row_scales(norms, beside[0], row)[None, :]
        out *= scale
        if ACTIVATION != 0:
            up *= scale
    if HAS_BIAS:
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION != 0:
        if HAS_BIAS:
            up += tl.load(bias + width + at, mask=inside, other=0.0).to(tl.float32)[:, None]
        out = activate(out, ACTIVATION) * up
    if NORM == ADDED:
        _store_added(out, beside, norms, y, at, row, rows, width, BLOCK_N)
    else:
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
    norms,
    bias,
    y,
    at,
    row,
    rows,
    width,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`store_result` of the sum over the programs of a tile.

    partial: float32 [tiles, parts, BLOCK_N * BLOCK_M], twice as many parts with an activation; counters: int32
    [tiles], zero before and after. Tiles are counted over program_id(0) and program_id(2).
    """
    parts = tl.num_programs(1)
    if parts == 1:
        beside = load_beside(norms, at, row, rows, width, NORM)
        store_result(out, up, beside, norms, bias, y, at, row, rows, width, HAS_BIAS, ACTIVATION, NORM, BLOCK_N)
    else:
        SIZE: tl.constexpr = BLOCK_N * BLOCK_M
        SIDES: tl.constexpr = 2 if ACTIVATION != 0 else 1
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        # In the order in which the tile's own program goes on: along W for few rows and where y has company.
        ALONG: tl.constexpr = BLOCK_M <= 8 or NORM == ADDED
        place = tl.arange(0, BLOCK_N)[:, None] * (1 if ALONG else BLOCK_M)
        place += tl.arange(0, BLOCK_M)[None, :] * (BLOCK_N if ALONG else 1)
        of_tile = partial + tile.to(tl.int64) * (parts * SIDES * SIZE) + place
        own = of_tile + tl.program_id(1) * (SIDES * SIZE)
        tl.store(own, out, cache_modifier=".cg")
        if ACTIVATION != 0:
            tl.store(own + SIZE, up, cache_modifier=".cg")
        tl.debug_barrier()  # all threads have written before one of them says so
        came = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if came == parts - 1:
            beside = load_beside(norms, at, row, rows, width, NORM)
            out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            up = out
            # Four at a time are on their way together.
            for start in range(0, parts, 4):
                out = _add_four(out, of_tile, start, parts, SIDES * SIZE)
                if ACTIVATION != 0:
                    up = _add_four(up, of_tile + SIZE, start, parts, SIDES * SIZE)
            tl.store(counters + tile, 0)
            store_result(out, up, beside, norms, bias, y, at, row, rows, width, HAS_BIAS, ACTIVATION, NORM, BLOCK_N)
