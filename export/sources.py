"""Row sources made of other row sources: joins, slices, transposes, reordered rows, constants.

Each can say how it is made (`recipe`), as JSON over the names of checkpoint tensors, so that a skeleton can be
filled on another machine; equal recipes mean equal content, which is what `key` is made of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.forms import join, recode
from export.tensors import CHUNK_BYTES, QuantisedRows, RowSource


def recipe_key(recipe: dict[str, Any]) -> str:
    """The key of an expression: a digest of its recipe."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def row_chunks(source: RowSource, chunk_bytes: int = CHUNK_BYTES, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive row chunks whose float32 form is at most `chunk_bytes`; each but the last has a
    multiple of `unit` rows, one unit at least.
    """
    width = int(np.prod(source.shape[1:], dtype=np.int64)) * 4 * unit
    step = max(1, chunk_bytes // max(1, width)) * unit
    for start in range(0, source.shape[0], step):
        yield start, min(start + step, source.shape[0])


class Expression(RowSource):
    """A row source that is made of others; its key is the digest of its recipe."""

    @cached_property
    def key(self) -> str:  # type: ignore[override]
        return recipe_key(self.recipe())


class Concat(Expression):
    """Rows of several sources, one below the other; their trailing shapes must be equal."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        tails = {part.shape[1:] for part in parts}
        if len(tails) != 1:
            raise ValueError(f"cannot join rows of shapes {[part.shape for part in parts]}")
        self.parts = tuple(parts)
        self.shape = (sum(part.shape[0] for part in parts), *tails.pop())
        self.quantised = join(part.quantised for part in parts)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[RowSource, int, int]]:
        base = 0
        for part in self.parts:
            low, high = max(start - base, 0), min(stop - base, part.shape[0])
            if low < high:
                yield part, low, high
            base += part.shape[0]

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        pieces = [part.rows(low, high) for part, low, high in self._pieces(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        read = []
        for part, low, high in self._pieces(start, stop):
            if part.quantised is None or self.quantised is None:
                raise NotImplementedError(f"{part.key} is not quantised in its checkpoint")
            read.append(recode(part.quantised_rows(low, high), part.quantised, self.quantised))
        return join_quantised(read)

    def recipe(self) -> dict[str, Any]:
        return {"op": "concat", "parts": [part.recipe() for part in self.parts]}


class RowSlice(Expression):
    """Rows [start, stop) of a source."""

    def __init__(self, source: RowSource, start: int, stop: int) -> None:
        if not 0 <= start < stop <= source.shape[0]:
            raise ValueError(f"rows [{start}, {stop}) are not within {source.shape[0]} rows")
        self.source = source
        self.start = start
        self.shape = (stop - start, *source.shape[1:])
        self.quantised = source.quantised

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.source.rows(self.start + start, self.start + stop)

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        return self.source.quantised_rows(self.start + start, self.start + stop)

    def recipe(self) -> dict[str, Any]:
        stop = self.start + self.shape[0]
        return {"op": "slice", "source": self.source.recipe(), "start": self.start, "stop": stop}


def regrouped_order(blocks: int, outer: int, inner: int, length: int) -> NDArray[np.int64]:
    """The source's row for each row of a `Regrouped`."""
    order = np.arange(blocks * outer * inner * length, dtype=np.int64).reshape(blocks, outer, inner, length)
    return order.swapaxes(1, 2).reshape(-1)


class Regrouped(Expression):
    """Whole rows reordered: seen as [blocks, outer, inner, length] they become [blocks, inner, outer, length].

    Quantised rows stay exact, for rows move as they are. Two uses: q | k | v stored per head (blocks 1, outer
    heads, inner 3, length head_dim) becomes q, k, v one below the other; rows permuted for interleaved RoPE
    (blocks heads, outer head_dim / 2, inner 2, length 1) return to the order of two halves.
    """

    def __init__(self, source: RowSource, blocks: int, outer: int, inner: int, length: int = 1) -> None:
        if blocks * outer * inner * length != source.shape[0]:
            raise ValueError(f"{source.shape[0]} rows are not {blocks} x {outer} x {inner} x {length}")
        self.source = source
        self.arrangement = (blocks, outer, inner, length)
        self.shape = source.shape
        self.quantised = source.quantised
        self._order = regrouped_order(*self.arrangement)

    def _spans(self, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
        """The span of the source's rows to read, and which of them, in order, are asked for."""
        index = self._order[start:stop]
        low, high = int(index.min()), int(index.max()) + 1
        return low, high, index - low

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        low, high, index = self._spans(start, stop)
        return self.source.rows(low, high)[index]

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        low, high, index = self._spans(start, stop)
        read = self.source.quantised_rows(low, high)
        minima = None if read.minima is None else read.minima[index]
        return QuantisedRows(read.values[index], read.scales[index], minima)

    def recipe(self) -> dict[str, Any]:
        return {"op": "regroup", "source": self.source.recipe(), "arrangement": list(self.arrangement)}


class Transposed(Expression):
    """A matrix turned round; reads its source once for every chunk of rows."""

    def __init__(self, source: RowSource) -> None:
        if len(source.shape) != 2:
            raise ValueError(f"only a matrix can be transposed, not shape {source.shape}")
        self.source = source
        self.shape = (source.shape[1], source.shape[0])

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        out = np.empty((stop - start, self.shape[1]), np.float32)
        for low, high in row_chunks(self.source):
            out[:, low:high] = self.source.rows(low, high)[:, start:stop].T
        return out

    def recipe(self) -> dict[str, Any]:
        return {"op": "transpose", "source": self.source.recipe()}


class Affine(Expression):
    """scale * source + offset, in float32: norms stored as w where the graph wants 1 + w, folded multipliers."""

    def __init__(self, source: RowSource, scale: float = 1.0, offset: float = 0.0) -> None:
        self.source = source
        self.scale = scale
        self.offset = offset
        self.shape = source.shape

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        rows = self.source.rows(start, stop)
        if self.scale != 1.0:
            rows = rows * np.float32(self.scale)
        if self.offset != 0.0:
            rows = rows + np.float32(self.offset)
        return rows

    def recipe(self) -> dict[str, Any]:
        return {"op": "affine", "source": self.source.recipe(), "scale": self.scale, "offset": self.offset}


class Row(Expression):
    """A vector as a matrix of one row."""

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self.shape = (1, *source.shape)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.source.all()[None][start:stop]

    def recipe(self) -> dict[str, Any]:
        return {"op": "row", "source": self.source.recipe()}


class Unit(Expression):
    """The power of two, as [1], that takes a vector's largest magnitude into [1/2, 1); 1 where all are zero."""

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self.shape = (1,)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        _, exponent = np.frexp(np.abs(self.source.all()).max())
        unit: NDArray[np.float32] = np.ldexp(np.ones(1, np.float32), -exponent)
        return unit[start:stop]

    def recipe(self) -> dict[str, Any]:
        return {"op": "unit", "source": self.source.recipe()}


class Constant(Expression):
    """An array that no checkpoint holds: RoPE tables, folded buffers. Kept in memory, and by a skeleton whole."""

    def __init__(self, array: NDArray[Any]) -> None:
        if array.ndim == 0:
            raise ValueError("a constant needs at least one axis")
        self.array = np.ascontiguousarray(array, dtype=np.float32)
        self.shape = self.array.shape
        self._digest = hashlib.sha256(self.array.tobytes()).hexdigest()

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.array[start:stop]

    def recipe(self) -> dict[str, Any]:
        return {"op": "constant", "shape": list(self.shape), "sha256": self._digest}


class Named(RowSource):
    """A source that is known as the parameter it stands for: how its checkpoint keeps that, and in how many
    tensors, is the checkpoint's matter."""

    def __init__(self, source: RowSource, name: str) -> None:
        self._source = source
        self.name = name
        self.key = f"tensor:{name}"
        self.shape = source.shape
        self.quantised = source.quantised

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._source.rows(start, stop)

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        return self._source.quantised_rows(start, stop)

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}


def join_quantised(pieces: Sequence[QuantisedRows]) -> QuantisedRows:
    """Quantised rows of one form, one below the other."""
    if len(pieces) == 1:
        return pieces[0]
    minima = [piece.minima for piece in pieces if piece.minima is not None]
    return QuantisedRows(
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate([piece.scales for piece in pieces]),
        np.concatenate(minima) if minima else None,
    )


def source_of(
    recipe: dict[str, Any], tensor: Callable[[str], RowSource], constant: Callable[[str], NDArray[np.float32]]
) -> RowSource:
    """Build the source that a recipe describes; `tensor` opens a checkpoint tensor by name, `constant` gives an
    array by its digest. Raises KeyError, TypeError or ValueError when the recipe is not one of ours."""

    def build(part: dict[str, Any]) -> RowSource:
        match part["op"]:
            case "tensor":
                return tensor(part["name"])
            case "concat":
                return Concat([build(item) for item in part["parts"]])
            case "slice":
                return RowSlice(build(part["source"]), part["start"], part["stop"])
            case "regroup":
                return Regrouped(build(part["source"]), *part["arrangement"])
            case "transpose":
                return Transposed(build(part["source"]))
            case "affine":
                return Affine(build(part["source"]), part["scale"], part["offset"])
            case "row":
                return Row(build(part["source"]))
            case "unit":
                return Unit(build(part["source"]))
            case "constant":
                return Constant(constant(part["sha256"]).reshape(part["shape"]))
        raise ValueError(f"{part['op']!r} is not an operation of a recipe")

    return build(recipe)
