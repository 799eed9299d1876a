"""One safetensors file: its header checked in full before any tensor is read.

Format: https://huggingface.co/docs/safetensors: a little-endian u64 with the length of a JSON header, the header,
then the data. Read by hand because numpy knows no bfloat16 and because a damaged file must be named as such.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.files import FETCH_AGAIN, fill
from export.tensors import RowSource, matrix_shape
from ops.errors import CheckpointError, UnsupportedModel

MAX_HEADER_BYTES = 100_000_000

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
FLOATS: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: dtype as the header names it, shape, absolute byte offset, bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Shard:
    """An open safetensors file. Raises CheckpointError when the file is missing, truncated or corrupt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CheckpointError(
                f"The shard {path.name} cannot be opened: {error.strerror}.",
                why=f"It should lie in {path.parent}.",
                remedy="Fetch the missing file into the checkpoint's folder.",
            ) from error
        self._size = os.fstat(self._file.fileno()).st_size
        try:
            self.metadata, self.entries = self._header()
        except CheckpointError:
            self.close()
            raise

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"The safetensors file {self.path} is damaged.", why=why, remedy=FETCH_AGAIN)

    def _header(self) -> tuple[dict[str, str], dict[str, Entry]]:
        if self._size < 8:
            raise self._damaged(f"It holds {self._size} bytes, too few for a header.")
        length = int.from_bytes(self._file.read(8), "little")
        if length > MAX_HEADER_BYTES or 8 + length > self._size:
            raise self._damaged(f"Its header claims {length} bytes; the file has {self._size}.")
        try:
            header = json.loads(self._file.read(length).decode("utf-8"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"Its header is not valid JSON ({error}).") from error
        if not isinstance(header, dict):
            raise self._damaged("Its header is not a JSON object.")
        metadata = header.pop("__metadata__", {})
        start = 8 + length
        entries = {name: self._entry(name, value, start) for name, value in header.items()}
        self._check_cover(entries, start)
        return metadata if isinstance(metadata, dict) else {}, entries

    def _entry(self, name: str, value: Any, start: int) -> Entry:
        try:
            dtype, shape = value["dtype"], tuple(value["shape"])
            begin, end = value["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"The entry of {name!r} lacks dtype, shape or data_offsets.") from error
        numbers = (*shape, begin, end)
        if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            raise self._damaged(f"The entry of {name!r} has a shape or offsets that are not whole numbers.")
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise self._damaged(f"The entry of {name!r} has the unknown type {dtype!r}.")
        nbytes = ITEM_BYTES[dtype]
        for size in shape:
            nbytes *= size
        if end - begin != nbytes:
            raise self._damaged(
                f"{name!r} of shape {list(shape)} needs {nbytes} bytes, its offsets give {end - begin}."
            )
        if start + end > self._size:
            raise self._damaged(f"It is truncated: {name!r} ends at byte {start + end}, the file at {self._size}.")
        return Entry(dtype, shape, start + begin, nbytes)

    def _check_cover(self, entries: dict[str, Entry], start: int) -> None:
        """Tensors follow one another without gap or overlap, up to the end of the file."""
        position = start
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
            if entry.offset != position:
                raise self._damaged(f"{name!r} starts at byte {entry.offset}, expected {position}.")
            position += entry.nbytes
        if position != self._size:
            raise self._damaged(f"Its tensors end at byte {position}, the file at {self._size}.")

    def read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) of a tensor as float32. Raises UnsupportedModel for a type that is no float."""
        entry = self.entries[name]
        if entry.dtype not in FLOATS:
            raise UnsupportedModel(
                f"The weight {name!r} is stored as {entry.dtype}.",
                why=f"{self.path.name} holds a quantised or integer weight; only float weights are read.",
                remedy="Export the unquantised checkpoint (F32, F16 or BF16), or a GGUF file.",
            )
        dtype: np.dtype[Any] = FLOATS[entry.dtype]
        shape = (stop - start, *matrix_shape(entry.shape)[1:])
        raw: NDArray[Any] = np.empty(shape, dtype)
        width = raw.nbytes // max(1, stop - start)
        self._fill(raw, entry.offset + start * width)
        if entry.dtype == "BF16":
            wide = raw.astype(np.uint32)
            wide <<= 16
            raw = wide.view(np.float32)
        return raw.astype(np.float32, copy=False)

    def _fill(self, array: NDArray[Any], offset: int) -> None:
        """Read bytes at an offset; a file that shrank since it was opened is an error, not a crash."""
        if not fill(memoryview(array.reshape(-1).view(np.uint8).data), self._file.fileno(), offset, self.path):
            raise self._damaged("It became shorter while it was read.")

    def close(self) -> None:
        self._file.close()


class ShardTensor(RowSource):
    """One tensor of a shard, read in rows when asked. A scalar is seen as one row, one of more than two axes as a
    matrix."""

    def __init__(self, shard: Shard, name: str) -> None:
        self._shard = shard
        self.name = name
        self.shape = matrix_shape(shard.entries[name].shape) or (1,)
        self.key = f"tensor:{name}"

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._shard.read(self.name, start, stop)

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a name occurs twice")
    return dict(pairs)
