"""Quantised weights and activations for the tests of QuantMatMul and QuantGather."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.layout import Codes, QuantForm, pack
from tests.ops.runner import Array

#: Every number of bits, every group, with and without minima, both types of scales.
FORMS = [
    QuantForm(4, 32),
    QuantForm(4, 32, minima=True),
    QuantForm(4, 64, minima=True, scales="float32"),
    QuantForm(4, 128, scales="float32"),
    QuantForm(8, 16, scales="float32"),
    QuantForm(8, 32),
    QuantForm(8, 64, minima=True),
    QuantForm(8, 128, minima=True, scales="float32"),
]


def random_weights(form: QuantForm, rows: int, columns: int) -> Array:
    """Packed weights with every code and scales of both signs."""
    rng = np.random.default_rng(rows * columns + form.group + form.bits)
    groups = -(-columns // form.group)
    scales = rng.uniform(-0.02, 0.02, (rows, groups)).astype(form.scale_type).astype(np.float32)
    minima = rng.uniform(-0.2, 0.2, (rows, groups)).astype(form.scale_type).astype(np.float32)
    values = rng.integers(0, 1 << form.bits, (rows, groups, form.group), dtype=np.uint8)
    return pack(form, Codes(values, scales, minima if form.minima else None))


def random_rows(count: int, columns: int) -> Array:
    """Activations; the second row has an outlier, the third is zero but for one column."""
    rng = np.random.default_rng(count + columns)
    x = rng.standard_normal((count, columns)).astype(np.float32)
    if count > 1:
        x[1, columns // 2] = 50.0
    if count > 2:
        x[2] = 0
        x[2, -1] = -1e-3
    return x


@dataclass(frozen=True)
class QuantCase:
    """Packed weights [rows, columns] and the attributes that describe them."""

    form: QuantForm
    rows: int
    columns: int

    @property
    def weights(self) -> Array:
        return random_weights(self.form, self.rows, self.columns)

    @property
    def attributes(self) -> dict[str, int | str]:
        form = self.form
        return {
            "rows": self.rows, "columns": self.columns, "bits": form.bits, "group": form.group,
            "minima": int(form.minima), "scales": form.scales,
        }  # fmt: skip
