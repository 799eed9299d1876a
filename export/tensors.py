"""Lazy tensors: a weight is described first and read in row chunks only when it is written.

A `RowSource` gives float rows of a checkpoint tensor or of an expression over several; a `StoredTensor` gives
the bytes that a bundle keeps. Neither holds a whole model, nor a whole large tensor, in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.errors import CheckpointError
from ops.layout import QuantForm

CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class QuantisedRows:
    """Rows of a checkpoint that is quantised already, exactly as it stores them.

    values uint8 [rows, K]: unsigned codes (bits 4: 0..15, bits 8: 0..255). scales float32 [rows, K / group];
    the weight is scale * (value - zero) with zero = 2^(bits - 1) where minima is None, else
    scale * value + minimum with minima float32 [rows, K / group].
    """

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    minima: NDArray[np.float32] | None


class RowSource(ABC):
    """A weight as rows: `shape` (first axis is rows), read in pieces. Equal `key`s mean equal content."""

    shape: tuple[int, ...]
    key: str
    #: The form in which `quantised_rows` gives the checkpoint's own codes, if it has any.
    quantised: QuantForm | None = None

    @abstractmethod
    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) as float32 of shape [stop - start, *shape[1:]]."""

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        """The same rows in the checkpoint's own quantised form, only where `quantised` is set."""
        raise NotImplementedError(f"{self.key} is not quantised in its checkpoint")

    def all(self) -> NDArray[np.float32]:
        return self.rows(0, self.shape[0])

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """How this is made, as JSON over the names of checkpoint tensors (see `export.sources.source_of`)."""


class StoredTensor(ABC):
    """A tensor as a bundle keeps it: numpy dtype, shape, and its content as consecutive chunks.

    Tensors of equal `key` are stored once and shared by every graph that names them. layout: the order of its
    bytes, the folder that a bundle keeps it in.
    """

    key: str
    layout: str = "plain"
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @abstractmethod
    def chunks(self) -> Iterator[NDArray[Any]]:
        """Arrays of `dtype` whose bytes, one after the other, are the tensor in C order."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """How this is made, as JSON (`export.stored.StoredReader` reads it); a skeleton keeps it, not the bytes."""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of three axes or more, as the weights of a layer's experts have, seen as a matrix: the leading axes
    become one, whose rows lie one below the other."""
    return shape if len(shape) < 3 else (int(np.prod(shape[:-1], dtype=np.int64)), shape[-1])


def mismatch(name: str, found: tuple[int, ...], needed: tuple[int, ...]) -> CheckpointError:
    """The error for a tensor of another shape than the configuration says."""
    return CheckpointError(
        f"The tensor {name} has shape {list(found)}, where the configuration needs {list(needed)}.",
        remedy="Check that config.json belongs to these weights.",
        param=name,
    )
