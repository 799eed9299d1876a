"""Row sources for tests: an array, and codes as a quantised checkpoint has them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.tensors import QuantisedRows, RowSource
from ops.layout import QuantForm


class ArraySource(RowSource):
    """Rows of an array, counting how many were read."""

    def __init__(self, array: NDArray[np.float32], name: str = "a") -> None:
        self.array = array
        self.shape = array.shape
        self.name = name
        self.key = f"tensor:{name}"
        self.rows_read = 0

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        self.rows_read += stop - start
        return self.array[start:stop]

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}


class CodeSource(RowSource):
    """A weight that is quantised already."""

    def __init__(self, codes: QuantisedRows, bits: Literal[4, 8], group: int, name: str = "q") -> None:
        self.codes = codes
        self.shape = codes.values.shape
        self.name = name
        self.key = f"tensor:{name}"
        self.form = self.quantised = QuantForm(bits, group, codes.minima is not None)

    @classmethod
    def random(cls, bits: Literal[4, 8], group: int, minima: bool, rows: int = 6, columns: int = 128) -> CodeSource:
        generator = np.random.default_rng(bits * group)
        groups = (rows, columns // group)
        codes = QuantisedRows(
            generator.integers(0, 1 << bits, (rows, columns), dtype=np.uint8),
            generator.standard_normal(groups).astype(np.float16).astype(np.float32),
            generator.standard_normal(groups).astype(np.float16).astype(np.float32) if minima else None,
        )
        return cls(codes, bits, group)

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        codes = self.codes
        minima = None if codes.minima is None else codes.minima[start:stop]
        return QuantisedRows(codes.values[start:stop], codes.scales[start:stop], minima)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        form = self.form
        part = self.quantised_rows(start, stop)
        scales = np.repeat(part.scales, form.group, axis=1)
        if part.minima is None:
            return (part.values.astype(np.float32) - (1 << (form.bits - 1))) * scales
        return part.values.astype(np.float32) * scales + np.repeat(part.minima, form.group, axis=1)

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}
