"""One .gguf file: metadata and tensor table, every length checked against the file before it is believed.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from export.checkpoint.files import FETCH_AGAIN, fill
from export.tensors import matrix_shape
from ops.errors import CheckpointError, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

#: Metadata type numbers of plain values, as numpy reads them; 7 is a bool, 8 a string, 9 an array.
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensorInfo:
    """Where one tensor lies. shape: rows first, as numpy has it, of experts all rows; row_bytes: the stored size
    of one row."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes


class GGUFFile:
    """An open file: `metadata` by key, `tensors` by name. Raises CheckpointError when it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror}.") from error
        self._size = os.fstat(self._file.fileno()).st_size
        try:
            self._read()
        except CheckpointError:
            self.close()
            raise

    def damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"The GGUF file {self.path} is damaged.", why=why, remedy=FETCH_AGAIN)

    def _read(self) -> None:
        if self._take(4) != MAGIC:
            raise CheckpointError(
                f"{self.path} is not a GGUF file.", why="It does not begin with GGUF.", remedy="Name a .gguf file."
            )
        (version,) = self._unpack("<I")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{self.path} is GGUF version {version}.",
                why="Versions 2 and 3, little-endian, are read.",
                remedy="Convert the model again with a current converter.",
            )
        tensors, pairs = self._unpack("<QQ")
        self.metadata: dict[str, Any] = {}
        for _ in range(self._count(pairs, 13)):
            key = self._string()
            if key in self.metadata:
                raise self.damaged(f"Its metadata has the key {key!r} twice.")
            (kind,) = self._unpack("<I")
            self.metadata[key] = self._value(kind, nested=False)
        entries = [self._tensor_entry() for _ in range(self._count(tensors, 24))]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"Its alignment {alignment!r} is not a power of two.")
        start = -(-self._file.tell() // alignment) * alignment
        self.tensors = self._place(entries, start, alignment)

    def _take(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) != count:
            raise self.damaged(f"It is truncated: it ends at byte {self._size}, within its header.")
        return content

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _count(self, count: int, smallest: int) -> int:
        """A number of items of at least `smallest` bytes each, refused when the file cannot hold them."""
        if count * smallest > self._size - self._file.tell():
            raise self.damaged(f"It claims {count} items, more than its {self._size} bytes can hold.")
        return count

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        try:
            return self._take(self._count(length, 1)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged("A string of its metadata is not UTF-8.") from error

    def _value(self, kind: int, nested: bool) -> Any:
        if kind == STRING:
            return self._string()
        if kind in SCALARS:
            return np.frombuffer(self._take(SCALARS[kind].itemsize), SCALARS[kind])[0].item()
        if kind != ARRAY or nested:
            raise self.damaged(f"Its metadata has a value of the unknown type {kind}.")
        item, count = self._unpack("<IQ")
        if item in SCALARS:
            size = SCALARS[item].itemsize
            return np.frombuffer(self._take(self._count(count, size) * size), SCALARS[item]).tolist()
        return [self._value(item, nested=True) for _ in range(self._count(count, 8))]

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._unpack("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.damaged(f"The tensor {name!r} has {dimensions} dimensions.")
        shape = self._unpack(f"<{dimensions}Q")
        kind, offset = self._unpack("<IQ")
        return name, tuple(reversed(shape)), kind, offset

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, GGUFTensorInfo]:
        """The tensor table, once every tensor is known to lie within the file and apart from the others."""
        tensors: dict[str, GGUFTensorInfo] = {}
        for name, shape, kind, offset in entries:
            try:
                form = GGMLQuantizationType(kind)
            except ValueError as error:
                raise self.damaged(f"The tensor {name!r} has the unknown type {kind}.") from error
            items, size = GGML_QUANT_SIZES[form]
            if name in tensors:
                raise self.damaged(f"It has the tensor {name!r} twice.")
            if offset % alignment or shape[-1] % items or 0 in shape:
                raise self.damaged(f"The tensor {name!r} of shape {list(shape)} at {offset} does not fit its type.")
            shape = matrix_shape(shape)
            row_bytes = shape[-1] // items * size
            if len(shape) == 1:
                if items != 1:
                    raise self.damaged(f"The vector {name!r} is stored in blocks of {items}.")
                row_bytes = size
            info = GGUFTensorInfo(name, form, shape, start + offset, row_bytes)
            if info.offset + info.nbytes > self._size:
                raise self.damaged(
                    f"It is truncated: {name!r} ends at byte {info.offset + info.nbytes}, the file at {self._size}."
                )
            tensors[name] = info
        position = start
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if info.offset < position:
                raise self.damaged(f"The tensor {info.name!r} overlaps the one before it.")
            position = info.offset + info.nbytes
        return tensors

    def rows(self, info: GGUFTensorInfo, start: int, stop: int) -> NDArray[np.uint8]:
        """The stored bytes of rows [start, stop): uint8 [stop - start, row_bytes]."""
        raw = np.empty((stop - start, info.row_bytes), np.uint8)
        offset = info.offset + start * info.row_bytes
        if not fill(memoryview(raw.reshape(-1).data), self._file.fileno(), offset, self.path):
            raise self.damaged("It became shorter while it was read.")
        return raw

    def close(self) -> None:
        self._file.close()
