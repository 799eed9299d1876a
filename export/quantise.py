"""Round-to-nearest quantisation of weights in groups along a row, packed as `ops.layout` says.

A checkpoint's own codes are kept without rounding anew where the form holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.forms import holds, recode
from export.parallel import ordered
from export.sources import recipe_key, row_chunks
from export.tensors import RowSource, StoredTensor
from ops.errors import CheckpointError
from ops.layout import LAYOUT, TILE, Codes, QuantForm, pack

#: Small chunks keep every pass over them in the processor's cache.
CHUNK_BYTES = 2 << 20

Float32 = NDArray[np.float32]


class QuantisedWeight(StoredTensor):
    """One weight [N, K] in the layout cpu-vnni.

    Without minima: scale = (the value of largest magnitude, with its sign) / -2^(bits - 1), the zero is
    2^(bits - 1). With minima: minimum = the lowest value, scale = range / (2^bits - 1). In float16 scales are
    rounded up in magnitude and minima down, so that codes still reach both ends; codes are then chosen for the
    scale as it is stored.
    """

    layout = LAYOUT
    dtype = np.dtype(np.uint8)
    shape: tuple[int, ...]

    def __init__(self, source: RowSource, form: QuantForm) -> None:
        if len(source.shape) != 2:
            raise ValueError(f"only a matrix can be quantised, not shape {source.shape}")
        self.source = source
        self.form = form
        self.rows, self.columns = source.shape
        self.groups = -(-self.columns // form.group)
        self.shape = form.shape(self.rows, self.columns)
        self.key = recipe_key(self.recipe())

    @property
    def passes_through(self) -> bool:
        """Whether the checkpoint's own codes are kept."""
        stored = self.source.quantised
        return stored is not None and holds(self.form, stored) and self.columns % stored.group == 0

    def attributes(self) -> dict[str, int | str]:
        """What a node says of its weights."""
        form = self.form
        return {
            "rows": self.rows,
            "columns": self.columns,
            "bits": form.bits,
            "group": form.group,
            "minima": int(form.minima),
            "scales": form.scales,
            "layout": self.layout,
        }

    def codes(self, start: int, stop: int) -> Codes:
        """Rows [start, stop) as codes. Raises CheckpointError when a weight is not finite or too large."""
        codes = self._kept(start, stop) if self.passes_through else self._rounded(start, stop)
        with np.errstate(over="ignore"):
            sides = [side.astype(self.form.scale_type) for side in (codes.scales, codes.minima) if side is not None]
        if not all(np.isfinite(side).all() for side in sides):
            raise self._unusable()
        return codes

    def _kept(self, start: int, stop: int) -> Codes:
        stored = self.source.quantised or self.form
        read = recode(self.source.quantised_rows(start, stop), stored, self.form)
        return Codes(read.values.reshape(stop - start, self.groups, self.form.group), read.scales, read.minima)

    def _rounded(self, start: int, stop: int) -> Codes:
        rows = self.source.rows(start, stop)
        missing = self.groups * self.form.group - self.columns
        if missing:
            rows = np.pad(rows, ((0, 0), (0, missing)))
        grouped = rows.reshape(stop - start, self.groups, self.form.group)
        lowest, highest = grouped.min(axis=2), grouped.max(axis=2)
        with np.errstate(over="ignore"):
            finite = np.isfinite(highest - lowest).all()
        if not finite:
            raise self._unusable()
        return (
            self._between(grouped, lowest, highest)
            if self.form.minima
            else self._around_zero(grouped, lowest, highest)
        )

    def _around_zero(self, grouped: Float32, lowest: Float32, highest: Float32) -> Codes:
        half = 1 << (self.form.bits - 1)
        extreme: Float32 = np.where(-lowest > highest, lowest, highest)
        scales = self._stored(extreme / np.float32(-half), away_from=0.0)
        steps = grouped * _reciprocal(scales)[:, :, None]
        np.rint(steps, out=steps)
        steps += half
        np.clip(steps, 0, 2 * half - 1, out=steps)
        return Codes(steps.astype(np.uint8), scales, None)

    def _between(self, grouped: Float32, lowest: Float32, highest: Float32) -> Codes:
        top = (1 << self.form.bits) - 1
        minima = self._stored(lowest, away_from=np.inf)
        scales = self._stored((highest - minima) / np.float32(top), away_from=0.0)
        steps = (grouped - minima[:, :, None]) * _reciprocal(scales)[:, :, None]
        np.rint(steps, out=steps)
        np.clip(steps, 0, top, out=steps)
        return Codes(steps.astype(np.uint8), scales, minima)

    def _stored(self, values: Float32, away_from: float) -> Float32:
        """Values as the form's type of scales holds them, rounded away from zero or, for inf, down."""
        if self.form.scales == "float32":
            return values
        with np.errstate(over="ignore"):
            near = values.astype(np.float16)
        wide = near.astype(np.float32)
        if away_from:
            near = np.where(wide > values, np.nextafter(near, np.float16(-np.inf)), near)
        else:
            outward = np.where(values < 0, np.float16(-np.inf), np.float16(np.inf))
            near = np.where(np.abs(wide) < np.abs(values), np.nextafter(near, outward), near)
        return near.astype(np.float32)

    def _unusable(self) -> CheckpointError:
        return CheckpointError(
            f"A weight cannot be quantised: {self.source.recipe()}.",
            why="It holds infinities, NaN or values too large for the scales of its groups.",
            remedy="Check the checkpoint: it is damaged or its training diverged.",
        )

    def dequantised_rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop) as the kernels see them, float32 [stop - start, K]."""
        return self.codes(start, stop).dequantised(self.form.bits)[:, : self.columns]

    def chunks(self) -> Iterator[NDArray[Any]]:
        row_bytes = 4 * max(1, self.columns)
        spans = row_chunks(self.source, max(CHUNK_BYTES // (TILE * row_bytes), 1) * TILE * row_bytes)
        return ordered(self._chunk, spans)

    def _chunk(self, start: int, stop: int) -> NDArray[Any]:
        return pack(self.form, self.codes(start, stop))

    def recipe(self) -> dict[str, Any]:
        form = self.form
        return {
            "op": "quantised",
            "bits": form.bits,
            "group": form.group,
            "minima": form.minima,
            "scales": form.scales,
            "source": self.source.recipe(),
        }


def _reciprocal(scales: Float32) -> Float32:
    """1 / scale, and 0 for a group without a scale (its codes then all stand for the same)."""
    with np.errstate(over="ignore"):
        found = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    return np.where(np.isfinite(found), found, np.float32(0))
