"""Round-to-nearest quantisation of weights in groups along a row, packed as ORT's MatMulNBits reads them.

Layout (com.microsoft.MatMulNBits): values uint8 [N, blocks, group * bits / 8], even columns in the low nibble;
scales float32 [N, blocks]; zero points uint8 [N, ceil(blocks * bits / 8)], packed alike, absent when symmetric
(then the zero is 2^(bits - 1)). A last group that is not full is padded with the code for zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.sources import recipe_key, row_chunks
from export.tensors import RowSource, StoredTensor
from ops.errors import CheckpointError

#: Small chunks keep every pass over them in the processor's cache.
CHUNK_BYTES = 2 << 20
#: Below this the reciprocal of a scale overflows; such a group is stored as zeros.
SMALLEST_SCALE = 1e-37


@dataclass(frozen=True)
class Codes:
    """Rows as codes, not yet packed: values uint8 [n, blocks, group], scales float32 [n, blocks], zeros uint8
    [n, blocks], or None where every zero is 2^(bits - 1)."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None


class QuantisedWeight:
    """One weight [N, K] quantised to `bits` (4 or 8) in groups of `group` columns.

    Symmetric: scale = (the value of largest magnitude, with its sign) / -2^(bits - 1), zero 2^(bits - 1).
    Asymmetric: scale = range / (2^bits - 1) with zero points. A checkpoint's own codes are kept without
    rounding anew where they fit: no minima, not more bits, and groups that this group divides.
    `values`, `scales` and `zero_points` (None when symmetric) are the three stored tensors.
    """

    def __init__(self, source: RowSource, bits: int, group: int, symmetric: bool = True) -> None:
        if bits not in (4, 8) or group < 2 or group % 2:
            raise ValueError(f"{bits} bits in groups of {group} cannot be stored")
        if len(source.shape) != 2:
            raise ValueError(f"only a matrix can be quantised, not shape {source.shape}")
        self.source = source
        self.bits = bits
        self.group = group
        self.symmetric = symmetric
        self.rows, self.columns = source.shape
        self.blocks = -(-self.columns // group)
        self._side: _SideArrays | None = None
        self.values: StoredTensor = _Values(self)
        self.scales: StoredTensor = _Scales(self)
        self.zero_points: StoredTensor | None = None if symmetric else _ZeroPoints(self)

    @property
    def passes_through(self) -> bool:
        """Whether the checkpoint's own codes are kept."""
        if self.source.quantised is None:
            return False
        bits, group, has_minima = self.source.quantised
        return not has_minima and bits <= self.bits and group % self.group == 0 and self.columns % group == 0

    def part(self, name: str) -> StoredTensor:
        """A stored tensor by its name in a recipe: values, scales or zero_points."""
        parts = {"values": self.values, "scales": self.scales, "zero_points": self.zero_points}
        part = parts[name]
        if part is None:
            raise KeyError(name)
        return part

    def codes(self, start: int, stop: int) -> Codes:
        """Rows [start, stop) as codes. Raises CheckpointError when a weight is not finite."""
        if self.passes_through:
            return self._kept(start, stop)
        rows = self.source.rows(start, stop)
        missing = self.blocks * self.group - self.columns
        if missing:
            rows = np.pad(rows, ((0, 0), (0, missing)))
        grouped = rows.reshape(stop - start, self.blocks, self.group)
        lowest, highest = grouped.min(axis=2), grouped.max(axis=2)
        with np.errstate(over="ignore"):
            finite = np.isfinite(highest - lowest).all()
        if not finite:
            raise CheckpointError(
                f"A weight cannot be quantised: {self.source.recipe()}.",
                why="It holds infinities, NaN or values near the end of float32's range.",
                remedy="Check the checkpoint: it is damaged or its training diverged.",
            )
        return (
            self._symmetric(grouped, lowest, highest)
            if self.symmetric
            else self._asymmetric(grouped, lowest, highest)
        )

    def _kept(self, start: int, stop: int) -> Codes:
        bits, group, _ = self.source.quantised or (0, 0, False)
        read = self.source.quantised_rows(start, stop)
        shift = (1 << (self.bits - 1)) - (1 << (bits - 1))
        values = read.values + np.uint8(shift) if shift else read.values
        scales = np.repeat(read.scales, group // self.group, axis=1)
        zeros = None if self.symmetric else np.full(scales.shape, 1 << (self.bits - 1), np.uint8)
        return Codes(values.reshape(stop - start, self.blocks, self.group), scales, zeros)

    def _symmetric(
        self, grouped: NDArray[np.float32], lowest: NDArray[np.float32], highest: NDArray[np.float32]
    ) -> Codes:
        half = 1 << (self.bits - 1)
        scales: NDArray[np.float32] = (np.where(-lowest > highest, lowest, highest) / -half).astype(np.float32)
        steps = grouped * _reciprocal(scales)[:, :, None]
        np.rint(steps, out=steps)
        steps += half
        np.minimum(steps, 2 * half - 1, out=steps)
        return Codes(steps.astype(np.uint8), scales, None)

    def _asymmetric(
        self, grouped: NDArray[np.float32], lowest: NDArray[np.float32], highest: NDArray[np.float32]
    ) -> Codes:
        top = (1 << self.bits) - 1
        lowest = np.minimum(lowest, 0)
        scales: NDArray[np.float32] = ((np.maximum(highest, 0) - lowest) / top).astype(np.float32)
        reciprocal = _reciprocal(scales)
        zeros = np.minimum(np.rint(-lowest * reciprocal), top)
        steps = grouped * reciprocal[:, :, None]
        np.rint(steps, out=steps)
        steps += zeros[:, :, None]
        np.clip(steps, 0, top, out=steps)
        return Codes(steps.astype(np.uint8), scales, zeros.astype(np.uint8))

    def dequantised_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) as the kernels see them: scale * (code - zero), float32 [stop - start, K]."""
        codes = self.codes(start, stop)
        zeros = (
            np.float32(1 << (self.bits - 1)) if codes.zeros is None else codes.zeros[:, :, None].astype(np.float32)
        )
        values = (codes.values.astype(np.float32) - zeros) * codes.scales[:, :, None]
        return values.reshape(stop - start, -1)[:, : self.columns]

    def pack(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Codes [..., n] as bytes along the last axis; an odd last nibble is padded with zero."""
        if self.bits == 8:
            return values
        if values.shape[-1] % 2:
            values = np.concatenate([values, np.zeros((*values.shape[:-1], 1), np.uint8)], axis=-1)
        packed: NDArray[np.uint8] = values[..., 0::2] | (values[..., 1::2] << np.uint8(4))
        return packed

    def stream(self) -> Iterator[NDArray[np.uint8]]:
        """Packed values chunk by chunk; when done, scales and zero points of the pass are kept until taken."""
        side = _SideArrays.empty(self)
        for start, stop in row_chunks(self.source, CHUNK_BYTES):
            codes = self.codes(start, stop)
            side.scales[start:stop] = codes.scales
            if side.zeros is not None and codes.zeros is not None:
                side.zeros[start:stop] = self.pack(codes.zeros)
            yield self.pack(codes.values)
        self._side = side

    def take_side(self) -> _SideArrays:
        """Scales and zero points, from the last pass over the source or, if there was none, from a new one."""
        if self._side is None:
            for _ in self.stream():
                continue
        side = self._side
        if side is None:
            raise CheckpointError(f"{self.source.key} ended before it was read.")
        return side

    def release(self, part: str) -> None:
        """Forget one side array once it is written; the last one frees the pass."""
        if self._side is not None:
            self._side.pending.discard(part)
            if not self._side.pending:
                self._side = None


def _reciprocal(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, and 0 for a group of zeros (its codes are then all the zero)."""
    usable = np.abs(scales) > SMALLEST_SCALE
    scales[~usable] = 0
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=usable)


@dataclass
class _SideArrays:
    """Scales float32 [N, blocks] and packed zero points of one pass; `pending` names those not written yet."""

    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None
    pending: set[str]

    @classmethod
    def empty(cls, weight: QuantisedWeight) -> _SideArrays:
        scales = np.empty((weight.rows, weight.blocks), np.float32)
        if weight.symmetric:
            return cls(scales, None, {"scales"})
        zeros = np.empty((weight.rows, -(-weight.blocks * weight.bits // 8)), np.uint8)
        return cls(scales, zeros, {"scales", "zero_points"})


class _Part(StoredTensor):
    """One of the tensors that a quantised weight is stored as."""

    name: str

    def __init__(self, weight: QuantisedWeight) -> None:
        self.weight = weight
        self.key = recipe_key(self.recipe())

    def recipe(self) -> dict[str, Any]:
        weight = self.weight
        return {
            "op": "quantised",
            "part": self.name,
            "bits": weight.bits,
            "group": weight.group,
            "symmetric": weight.symmetric,
            "source": weight.source.recipe(),
        }


class _Values(_Part):
    name = "values"
    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.weight.rows, self.weight.blocks, self.weight.group * self.weight.bits // 8)

    def chunks(self) -> Iterator[NDArray[Any]]:
        return self.weight.stream()


class _Scales(_Part):
    name = "scales"
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.weight.rows, self.weight.blocks)

    def chunks(self) -> Iterator[NDArray[Any]]:
        yield self.weight.take_side().scales
        self.weight.release(self.name)


class _ZeroPoints(_Part):
    name = "zero_points"
    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.weight.rows, -(-self.weight.blocks * self.weight.bits // 8))

    def chunks(self) -> Iterator[NDArray[Any]]:
        zeros = self.weight.take_side().zeros
        if zeros is not None:
            yield zeros
        self.weight.release(self.name)
