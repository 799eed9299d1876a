"""The block types of GGUF, taken apart into codes, scales and minima without loss.

Layouts: ggml's block definitions (ggml-common.h) as its documentation describes them. A code of a type without
minima is shifted so that its zero is 2^(bits - 1); types of 5 and 6 bits are given as 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from export.tensors import QuantisedRows
from ops.layout import QuantForm

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
#: Codes [n, items of a block], scales [n, groups], minima [n, groups] of n blocks [n, bytes of a block].
Decoder = Callable[[Bytes], tuple[Bytes, Floats, Floats | None]]

# Typed numbers, so that bytes stay bytes.
ONE, THREE, FOUR, SIX, LOW = (np.uint8(number) for number in (1, 3, 4, 6, 15))

FLOATS: dict[Type, np.dtype[Any]] = {
    Type.F32: np.dtype("<f4"),
    Type.F16: np.dtype("<f2"),
    Type.BF16: np.dtype("<u2"),
}


@dataclass(frozen=True)
class BlockType:
    """A quantised type: bytes and items of a block, and the form of its rows."""

    nbytes: int
    items: int
    form: QuantForm
    decode: Decoder


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block: float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, b] bytes as [n, 2 b] codes: all low nibbles, then all high ones."""
    return np.concatenate([packed & LOW, packed >> FOUR], axis=1)


def _high_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits at byte `at` as 0 or 16: [n, 32], bit i belongs to item i."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << FOUR


def _q4_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    return _nibbles(blocks[:, 2:]), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    codes = _nibbles(blocks[:, 6:]) | _high_bits(blocks, 2)
    return codes + np.uint8(128 - 16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    return _nibbles(blocks[:, 8:]) | _high_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    return blocks[:, 2:] ^ np.uint8(0x80), _half(blocks, 0), None


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes as eight 6-bit scales and eight 6-bit minima: [n, 8] each."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & np.uint8(63), (third & LOW) | (first >> SIX << FOUR)], axis=1)
    minima = np.concatenate([second & np.uint8(63), (third >> FOUR) | (second >> SIX << FOUR)], axis=1)
    return scales, minima


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    return _half(blocks, 0) * scales.astype(np.float32), -(_half(blocks, 2) * minima.astype(np.float32))


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes as 256 codes: every 32 bytes give 32 low nibbles, then 32 high ones."""
    parts = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (parts & LOW).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    return _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    high = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    codes = _k_nibbles(blocks[:, 48:]) | ((high & ONE) << FOUR).reshape(-1, 256)
    return codes, *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats | None]:
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    low = (blocks[:, :128].reshape(-1, 2, 1, 64) >> shifts) & LOW
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    codes = low.reshape(-1, 2, 4, 32) | ((high & THREE) << FOUR)
    scales = _half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return codes.reshape(-1, 256) + np.uint8(128 - 32), scales, None


BLOCKS: dict[Type, BlockType] = {
    Type.Q4_0: BlockType(18, 32, QuantForm(4, 32), _q4_0),
    Type.Q4_1: BlockType(20, 32, QuantForm(4, 32, minima=True), _q4_1),
    Type.Q5_0: BlockType(22, 32, QuantForm(8, 32), _q5_0),
    Type.Q5_1: BlockType(24, 32, QuantForm(8, 32, minima=True), _q5_1),
    Type.Q8_0: BlockType(34, 32, QuantForm(8, 32), _q8_0),
    Type.Q4_K: BlockType(144, 256, QuantForm(4, 32, minima=True, scales="float32"), _q4_k),
    Type.Q5_K: BlockType(176, 256, QuantForm(8, 32, minima=True, scales="float32"), _q5_k),
    Type.Q6_K: BlockType(210, 256, QuantForm(8, 16, scales="float32"), _q6_k),
}
SUPPORTED = (*FLOATS, *BLOCKS)


def decode_floats(raw: Bytes, kind: Type) -> Floats:
    """Rows of a float type as float32: [n, bytes] -> [n, items]."""
    values: NDArray[Any] = raw.view(FLOATS[kind])
    if kind == Type.BF16:
        wide = values.astype(np.uint32)
        wide <<= 16
        values = wide.view(np.float32)
    return values.astype(np.float32, copy=False)


def decode_blocks(raw: Bytes, kind: Type) -> QuantisedRows:
    """Rows of a quantised type: [n, bytes] -> codes [n, K], scales and minima [n, K / group]."""
    block = BLOCKS[kind]
    values, scales, minima = block.decode(raw.reshape(-1, block.nbytes))
    rows = raw.shape[0]
    return QuantisedRows(
        values.reshape(rows, -1), scales.reshape(rows, -1), None if minima is None else minima.reshape(rows, -1)
    )


def dequantise(rows: QuantisedRows, kind: Type) -> Floats:
    """Quantised rows as float32, in the order of operations that ggml uses, so that bits agree."""
    form = BLOCKS[kind].form
    values = rows.values.reshape(rows.values.shape[0], -1, form.group).astype(np.float32)
    if rows.minima is None:
        values -= 1 << (form.bits - 1)
        values *= rows.scales[:, :, None]
    else:
        values *= rows.scales[:, :, None]
        values += rows.minima[:, :, None]
    return values.reshape(rows.values.shape)
