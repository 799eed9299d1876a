"""Quantised weights in the layout cuda-fragments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from export.parallel import ordered
from export.quantise import CHUNK_BYTES, QuantisedWeight
from export.sources import recipe_key, row_chunks
from export.tensors import RowSource
from ops.cuda_layout import BLOCK_ROWS, CUDA_LAYOUT, pack_rows, shape_of, supported
from ops.errors import CheckpointError
from ops.layout import QuantForm


class CudaQuantisedWeight(QuantisedWeight):
    """The codes of a QuantisedWeight, in blocks of rows as `ops.cuda_layout` says."""

    layout = CUDA_LAYOUT

    def __init__(self, source: RowSource, form: QuantForm) -> None:
        if not supported(form):
            raise CheckpointError(
                f"A weight's scales are {form.scales}, which the GPU kernels do not read: {source.recipe()}.",
                remedy="Export the precision int8 or int4 for the target cuda.",
            )
        super().__init__(source, form)
        self.shape = shape_of(form, self.rows, self.columns)
        self.key = recipe_key(self.recipe())

    def chunks(self) -> Iterator[NDArray[Any]]:
        return ordered(self._chunk, row_chunks(self.source, CHUNK_BYTES, BLOCK_ROWS))

    def _chunk(self, start: int, stop: int) -> NDArray[Any]:
        return pack_rows(self.form, self.codes(start, stop))

    def recipe(self) -> dict[str, Any]:
        return {**super().recipe(), "layout": CUDA_LAYOUT}
