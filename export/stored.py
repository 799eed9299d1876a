"""Stored tensors as plain numbers, and the way back from a recipe to any stored tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.parallel import ordered
from export.quantise import QuantisedWeight
from export.quantise_cuda import CudaQuantisedWeight
from export.sources import recipe_key, row_chunks, source_of
from export.tensors import RowSource, StoredTensor
from ops.cuda_layout import CUDA_LAYOUT
from ops.errors import CheckpointError
from ops.layout import QuantForm

#: Float32 bytes of a chunk; several are in the making at a time.
CHUNK_BYTES = 8 << 20

FloatType = Literal["float32", "float16", "bfloat16"]


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Finite float32 values rounded to bfloat16, ties to even: the upper halves of their bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    return rounded


class Plain(StoredTensor):
    """The rows of a source as they are, in float32, float16 or bfloat16 (as its bits: numpy has no such type)."""

    def __init__(self, source: RowSource, dtype: FloatType = "float32") -> None:
        self.source = source
        self.float_type = dtype
        self.dtype = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        self.shape = source.shape
        self.key = recipe_key(self.recipe())

    def chunks(self) -> Iterator[NDArray[Any]]:
        return ordered(self._chunk, row_chunks(self.source, CHUNK_BYTES))

    def _chunk(self, start: int, stop: int) -> NDArray[Any]:
        rows = self.source.rows(start, stop)
        if self.float_type == "float32":
            return rows
        if self.float_type == "bfloat16":
            return bfloat16_bits(rows)
        with np.errstate(over="ignore"):
            cast: NDArray[Any] = rows.astype(self.dtype)
        if not np.isfinite(cast).all():
            raise CheckpointError(
                f"A weight does not fit float16: {self.source.recipe()}.",
                why="It holds values beyond 65504, infinities or NaN.",
                remedy="Export the precision fp32 or bf16, or check the checkpoint.",
            )
        return cast

    def recipe(self) -> dict[str, Any]:
        return {"op": "plain", "dtype": self.float_type, "source": self.source.recipe()}


class StoredReader:
    """Builds stored tensors from recipes."""

    def __init__(self, tensor: Callable[[str], RowSource], constant: Callable[[str], NDArray[np.float32]]) -> None:
        self._tensor = tensor
        self._constant = constant

    def stored(self, recipe: dict[str, Any]) -> StoredTensor:
        """The tensor that a recipe describes. Raises KeyError, TypeError or ValueError for a foreign recipe."""
        if recipe["op"] not in ("plain", "quantised"):
            raise ValueError(f"{recipe['op']!r} is not a kind of stored tensor")
        source = source_of(recipe["source"], self._tensor, self._constant)
        if recipe["op"] == "plain":
            return Plain(source, recipe["dtype"])
        form = QuantForm(recipe["bits"], recipe["group"], recipe["minima"], recipe["scales"])
        return (
            CudaQuantisedWeight(source, form)
            if recipe.get("layout") == CUDA_LAYOUT
            else QuantisedWeight(source, form)
        )
