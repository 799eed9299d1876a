"""The layout cuda-planes: weights in 4 or 8 bits in the order in which the GPU kernels read them.

A weight [N, K] is stored as uint8 [N, bytes of a row]. A row is, one after the other,

- codes: superblocks of four little-endian 32-bit words, 32 columns with 4 bits and 16 with 8. Word i holds in plane
  p the code of the superblock's column 4 p + i. With 4 bits plane p lies at bit 4 (p / 2) + 16 (p % 2), so that a
  shift and a mask give two codes in two halves of a register; with 8 bits at bit 8 p;
- a float16 scale for each group, then, if the form has them, the minima alike;
- zeros up to a multiple of 16 bytes.

Four threads-worth of columns lie side by side, so that activations are read in their own order; a row is one stream
for a program that takes whole rows. A weight is code * scale + minimum, or (code - 2^(bits - 1)) * scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.layout import Codes, QuantForm

CUDA_LAYOUT = "cuda-planes"
_WORDS = 4
_ALIGNMENT = 16

Bytes = NDArray[np.uint8]


def _shifts(bits: int) -> list[int]:
    """The bit at which each plane of a word begins."""
    return [4 * (plane // 2) + 16 * (plane % 2) for plane in range(8)] if bits == 4 else [0, 8, 16, 24]


def supported(form: QuantForm) -> bool:
    """Whether the layout can hold the form: scales in float16 only."""
    return form.scales == "float16"


def row_bytes(form: QuantForm, columns: int) -> int:
    """Bytes of one row of a weight with `columns` columns."""
    groups = -(-columns // form.group)
    sides = 2 if form.minima else 1
    size = groups * (form.group * form.bits // 8 + 2 * sides)
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def pack_rows(form: QuantForm, codes: Codes) -> Bytes:
    """Rows in the layout: uint8 [n, bytes of a row]."""
    rows, groups, group = codes.values.shape
    shifts = _shifts(form.bits)
    planes = codes.values.reshape(rows, -1, len(shifts), _WORDS).astype(np.uint32)
    words = np.zeros((rows, planes.shape[1], _WORDS), np.uint32)
    for plane, shift in enumerate(shifts):
        words |= planes[:, :, plane] << np.uint32(shift)
    packed = np.zeros((rows, row_bytes(form, groups * group)), np.uint8)
    parts: list[NDArray[Any]] = [words.reshape(rows, -1).astype("<u4"), codes.scales.astype("<f2")]
    if codes.minima is not None:
        parts.append(codes.minima.astype("<f2"))
    at = 0
    for part in parts:
        raw = np.ascontiguousarray(part).view(np.uint8).reshape(rows, -1)
        packed[:, at : at + raw.shape[1]] = raw
        at += raw.shape[1]
    return packed


def unpack_rows(form: QuantForm, packed: Bytes, columns: int) -> Codes:
    """The way back, padding columns included."""
    rows, groups = len(packed), -(-columns // form.group)
    code_bytes = groups * form.group * form.bits // 8
    words = np.ascontiguousarray(packed[:, :code_bytes]).view("<u4").reshape(rows, -1, _WORDS)
    shifts = _shifts(form.bits)
    mask = np.uint32((1 << form.bits) - 1)
    planes = np.stack([(words >> np.uint32(shift)) & mask for shift in shifts], axis=2)
    values = planes.astype(np.uint8).reshape(rows, groups, form.group)
    sides = []
    for side in range(2 if form.minima else 1):
        at = code_bytes + 2 * groups * side
        raw = np.ascontiguousarray(packed[:, at : at + 2 * groups]).view("<f2")
        sides.append(raw.astype(np.float32).reshape(rows, groups))
    return Codes(values, sides[0], sides[1] if form.minima else None)
