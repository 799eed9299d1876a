"""The layout cpu-vnni: weights in 4 or 8 bits in the order in which the CPU kernels read them.

A weight [N, K] is stored as uint8 [tiles, groups, bytes of a group]: tiles of 16 rows (the last padded with zeros),
each as its groups of columns (the last padded with codes 0), each group as

- codes: blocks of 32 columns (4 bits) or 16 (8 bits), one after the other. A block holds quads of four neighbouring
  columns: for each quad the four codes of row 0, of row 1, ... of row 15, 64 bytes where a code is a byte. With 4
  bits the first four quads of a block lie in the low nibbles of its 256 bytes and the other four in the high ones;
- 16 scales, one a row, in float16 or float32;
- 16 minima alike, if the form has them.

So a kernel reads one stream from front to back, and an instruction that multiplies quads of bytes has a row's four
codes in one lane. A weight is code * scale + minimum, or (code - 2^(bits - 1)) * scale without minima.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LAYOUT = "cpu-vnni"
TILE = 16
#: Columns whose codes lie together, by bits.
_BLOCK = {4: 32, 8: 16}

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class QuantForm:
    """How a weight is kept: bits of a code, columns that share a scale, whether groups have minima, and the type of
    scales and minima. Groups are 32, 64 or 128; 16 only with 8 bits."""

    bits: Literal[4, 8]
    group: int
    minima: bool = False
    scales: Literal["float16", "float32"] = "float16"

    def __post_init__(self) -> None:
        if self.bits not in _BLOCK or self.group not in (16, 32, 64, 128) or self.group < _BLOCK[self.bits]:
            raise ValueError(f"{self.bits} bits in groups of {self.group} cannot be stored")

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes, over all rows of a tile."""
        return TILE * self.group * self.bits // 8

    @property
    def scale_type(self) -> np.dtype[Any]:
        """The type of scales and minima."""
        return np.dtype(self.scales).newbyteorder("<")

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of one tile."""
        return self.code_bytes + TILE * self.scale_type.itemsize * (2 if self.minima else 1)

    def shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """The stored shape of a weight [rows, columns]."""
        return -(-rows // TILE), -(-columns // self.group), self.group_bytes


@dataclass(frozen=True)
class Codes:
    """Rows not yet packed: values uint8 [n, groups, group], scales and minima float32 [n, groups]; minima is None
    where the code 2^(bits - 1) stands for zero."""

    values: Bytes
    scales: Float32
    minima: Float32 | None

    def dequantised(self, bits: int) -> Float32:
        """The weights float32 [n, groups * group], each rounded twice at most."""
        values = self.values.astype(np.float32)
        if self.minima is None:
            values -= np.float32(1 << (bits - 1))
            values *= self.scales[:, :, None]
        else:
            values *= self.scales[:, :, None]
            values += self.minima[:, :, None]
        return values.reshape(len(values), -1)


def pack(form: QuantForm, codes: Codes) -> Bytes:
    """Rows in the layout: uint8 [tiles, groups, bytes of a group]; the last tile is padded with zeros."""
    rows, groups, group = codes.values.shape
    tiles = -(-rows // TILE)
    packed = np.empty((tiles, groups, form.group_bytes), np.uint8)
    values = _tiled(codes.values, tiles).reshape(tiles, TILE, groups, group // 4, 4).transpose(0, 2, 3, 1, 4)
    if form.bits == 4:
        halves = values.reshape(tiles, groups, group // 32, 2, 4 * TILE * 4)
        values = halves[:, :, :, 0] | (halves[:, :, :, 1] << np.uint8(4))
    packed[:, :, : form.code_bytes] = values.reshape(tiles, groups, form.code_bytes)
    sides = [codes.scales] if codes.minima is None else [codes.scales, codes.minima]
    at = form.code_bytes
    for side in sides:
        typed = np.ascontiguousarray(_tiled(side, tiles).transpose(0, 2, 1), dtype=form.scale_type)
        width = TILE * form.scale_type.itemsize
        packed[:, :, at : at + width] = typed.view(np.uint8).reshape(tiles, groups, width)
        at += width
    return packed


def unpack(form: QuantForm, packed: Bytes) -> Codes:
    """The way back; rows are those of whole tiles."""
    tiles, groups, _ = packed.shape
    values = packed[:, :, : form.code_bytes]
    if form.bits == 4:
        blocks = values.reshape(tiles, groups, form.group // 32, 1, -1)
        values = np.concatenate([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=3)
    quads = values.reshape(tiles, groups, form.group // 4, TILE, 4).transpose(0, 3, 1, 2, 4)
    width = TILE * form.scale_type.itemsize
    sides = []
    for at in range(form.code_bytes, form.group_bytes, width):
        side = np.ascontiguousarray(packed[:, :, at : at + width]).view(form.scale_type)
        sides.append(side.astype(np.float32).transpose(0, 2, 1).reshape(tiles * TILE, groups))
    return Codes(quads.reshape(tiles * TILE, groups, form.group), sides[0], sides[1] if form.minima else None)


def _tiled(array: NDArray[Any], tiles: int) -> NDArray[Any]:
    """Rows [n, groups, ...] as [tiles, 16, groups, ...], padded with zeros."""
    missing = tiles * TILE - len(array)
    if missing:
        array = np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
    return array.reshape(tiles, TILE, *array.shape[1:])
