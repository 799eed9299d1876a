"""QuantGather: rows of weights in the layout cuda-fragments, dequantised: the embedding from a tied head's
bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.fragments import ROWS, STEP, WORDS, word_place


@triton.jit
def quant_gather_kernel(
    words,
    scales,
    ids,
    y,
    rows,
    columns,
    block_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [ids, columns] float16; an id outside [0, rows) gives zeros. Grid (ids, steps)."""
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    COLUMNS: tl.constexpr = WORDS * 32 // BITS
    token, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(ids + token)
    real = (row >= 0) & (row < rows)
    row = tl.where(real, row, 0)
    start = (row // ROWS) * (block_bytes // 4)
    column = tl.arange(0, COLUMNS)
    pair, word, half = column // 64, column % 64 // 2, column % 2
    code = tl.load(words + start + step * STEP + word_place(row % ROWS, word), mask=real, other=0)
    value = ((code >> (BITS * pair + 16 * half)) & ((1 << BITS) - 1)).to(tl.float32)
    column += step * COLUMNS
    steps = tl.cdiv(columns, COLUMNS)
    side = scales + (start + steps * STEP) * 2 + (column // GROUP) * ROWS + row % ROWS
    scale = tl.load(side, mask=real, other=0.0).to(tl.float32)
    if MINIMA:
        least = tl.load(side + steps * (COLUMNS // GROUP * ROWS), mask=real, other=0.0).to(tl.float32)
        value = value * scale + least
    else:
        value = (value - (1 << (BITS - 1))) * scale
    tl.store(y + token * columns + column, value.to(y.dtype.element_ty), mask=column < columns)
