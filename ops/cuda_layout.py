"""The layout cuda-fragments: weights in 4 or 8 bits in the order in which a GPU's tensor cores take them.

A weight [N, K] is stored as uint8 [ceil(N / 64), bytes of a block]. A block holds 64 rows; it is, one after the
other,

- codes: steps of 8 KiB, each 64 rows by 32 words (little-endian, 32 bits), 256 columns with 4 bits and 128 with 8.
  Word j of a row holds pairs of neighbouring columns: pair p are the step's columns 64 p + 2 j and 64 p + 2 j + 1,
  in the lower and the upper half of the word, at bit 4 p with 4 bits and 8 p with 8. A mask then gives a pair of
  codes in two halves of a register, as a tensor core wants them. Within a step the words lie as the four warps of a
  program hold the left operand of a product (PTX ISA, matrix fragments of m16n8k16 and wgmma): each thread's come
  in pieces of 16 bytes, and a warp's pieces are neighbours;
- a float16 scale for each group and row, [groups, 64], then, if the form has them, the minima alike.

Rows and columns up to whole blocks and steps hold the code of zero (0 with minima) and scales of zero. A weight is
code * scale + minimum, or (code - 2^(bits - 1)) * scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.layout import Codes, QuantForm

CUDA_LAYOUT = "cuda-fragments"
#: Rows of a block.
BLOCK_ROWS = 64
_WORDS = 32
#: How a step's words lie in memory: a thread's pieces, warps, rows and words of a fragment, and a piece's four
#: words as two steps of 8 columns by two rows that lie 8 apart. The row is (warp, half, row), the word (piece,
#: step, word).
_STORED = (4, 4, 8, 4, 2, 2)

Bytes = NDArray[np.uint8]


def supported(form: QuantForm) -> bool:
    """Whether the layout can hold the form: scales in float16 only."""
    return form.scales == "float16"


def step_columns(bits: int) -> int:
    """Columns of one step."""
    return _WORDS * 32 // bits


def steps_of(bits: int, columns: int) -> int:
    """Steps of a row with `columns` columns."""
    return -(-columns // step_columns(bits))


def groups_of(form: QuantForm, columns: int) -> int:
    """Groups that are stored, those of the padding columns included."""
    return -(-steps_of(form.bits, columns) * step_columns(form.bits) // form.group)


def block_bytes(form: QuantForm, columns: int) -> int:
    """Bytes of one block of a weight with `columns` columns."""
    sides = 2 if form.minima else 1
    return BLOCK_ROWS * (4 * _WORDS * steps_of(form.bits, columns) + 2 * sides * groups_of(form, columns))


def shape_of(form: QuantForm, rows: int, columns: int) -> tuple[int, int]:
    """The shape of the stored weight."""
    return -(-rows // BLOCK_ROWS), block_bytes(form, columns)


def _padded(array: NDArray[Any], rows: int, columns: int, value: int = 0) -> NDArray[Any]:
    found = np.full((rows, columns), value, array.dtype)
    found[: array.shape[0], : array.shape[1]] = array
    return found


def pack_rows(form: QuantForm, codes: Codes) -> Bytes:
    """Rows, from the first of a block on, in the layout: uint8 [blocks, bytes of a block]."""
    count, groups, group = codes.values.shape
    blocks, columns = -(-count // BLOCK_ROWS), groups * group
    steps, bits = steps_of(form.bits, columns), form.bits
    zero = 0 if form.minima else 1 << (bits - 1)
    values = _padded(codes.values.reshape(count, columns), blocks * BLOCK_ROWS, steps * step_columns(bits), zero)
    # [rows, steps, pairs, words, halves]
    split = values.reshape(blocks * BLOCK_ROWS, steps, -1, _WORDS, 2)
    words = np.zeros((blocks * BLOCK_ROWS, steps, _WORDS), np.uint32)
    for pair in range(split.shape[2]):
        for half in range(2):
            words |= split[:, :, pair, :, half].astype(np.uint32) << np.uint32(bits * pair + 16 * half)
    # [blocks, warp, half, row, steps, piece, step of 8, word] to [blocks, steps, *_STORED]
    natural = words.reshape(blocks, 4, 2, 8, steps, 4, 2, 4)
    stored = natural.transpose(0, 4, 5, 1, 3, 7, 6, 2)
    parts = [np.ascontiguousarray(stored).astype("<u4").reshape(blocks, -1).view(np.uint8)]
    for side in (codes.scales, codes.minima):
        if side is not None:
            full = _padded(side, blocks * BLOCK_ROWS, groups_of(form, columns)).astype("<f2")
            turned = full.reshape(blocks, BLOCK_ROWS, -1).transpose(0, 2, 1)
            parts.append(np.ascontiguousarray(turned).reshape(blocks, -1).view(np.uint8))
    return np.concatenate(parts, axis=1)


def unpack_rows(form: QuantForm, packed: Bytes, rows: int, columns: int) -> Codes:
    """The way back: the first `rows` rows, columns up to the end of the last group."""
    blocks, steps, bits = len(packed), steps_of(form.bits, columns), form.bits
    code_bytes = 4 * _WORDS * BLOCK_ROWS * steps
    stored = np.ascontiguousarray(packed[:, :code_bytes]).view("<u4").reshape(blocks, steps, *_STORED)
    words = stored.transpose(0, 3, 7, 4, 1, 2, 6, 5).reshape(blocks * BLOCK_ROWS, steps, 1, _WORDS, 1)
    pairs = 16 // bits
    shifts = bits * np.arange(pairs)[:, None, None] + 16 * np.arange(2)
    values = (words >> shifts.astype(np.uint32)) & np.uint32((1 << bits) - 1)
    groups = -(-columns // form.group)
    flat = values.reshape(blocks * BLOCK_ROWS, -1)[:rows, : groups * form.group].astype(np.uint8)
    sides = []
    for side in range(2 if form.minima else 1):
        size = 2 * BLOCK_ROWS * groups_of(form, columns)
        raw = np.ascontiguousarray(packed[:, code_bytes + size * side : code_bytes + size * (side + 1)]).view("<f2")
        turned = raw.reshape(blocks, -1, BLOCK_ROWS).transpose(0, 2, 1).reshape(blocks * BLOCK_ROWS, -1)
        sides.append(turned[:rows, :groups].astype(np.float32))
    return Codes(flat.reshape(rows, groups, form.group), sides[0], sides[1] if form.minima else None)
