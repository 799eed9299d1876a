"""Weight files: tensors laid out page by page in shards, each stored once, hashed while they are written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from export.tensors import StoredTensor
from ops.errors import CheckpointError
from rtcore.manifest import FileEntry

PAGE = 4096
SHARD_BYTES = 2 << 30
ZEROS = bytes(PAGE)

#: Told the number of bytes written since the last call.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the bundle: file (relative to its root), byte offset, bytes."""

    path: str
    offset: int
    nbytes: int


@dataclass
class ShardPlan:
    """One weight file to be written: its tensors in order, each starting on a page."""

    path: str
    size: int = 0
    tensors: list[tuple[int, StoredTensor]] = field(default_factory=list)

    def add(self, tensor: StoredTensor) -> Place:
        offset = -(-self.size // PAGE) * PAGE
        self.tensors.append((offset, tensor))
        self.size = offset + tensor.nbytes
        return Place(self.path, offset, tensor.nbytes)


class WeightPlan:
    """Decides where every tensor goes before anything is written. Tensors of equal key share one place."""

    def __init__(self, shard_bytes: int = SHARD_BYTES) -> None:
        self.shard_bytes = shard_bytes
        self.shards: list[ShardPlan] = []
        self._places: dict[str, Place] = {}

    @property
    def nbytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    def add(self, folder: str, tensors: Iterable[StoredTensor]) -> list[Place]:
        """Place tensors into shards of `folder`, in order; those known already stay where they are."""
        shard: ShardPlan | None = None
        count = sum(known.path.startswith(f"{folder}/") for known in self.shards)
        places = []
        for tensor in tensors:
            if tensor.key not in self._places:
                if shard is None or shard.size + tensor.nbytes > self.shard_bytes:
                    shard = ShardPlan(f"{folder}/{count:05d}.bin")
                    self.shards.append(shard)
                    count += 1
                self._places[tensor.key] = shard.add(tensor)
            places.append(self._places[tensor.key])
        return places


def write_shard(root: Path, shard: ShardPlan, progress: Progress) -> FileEntry:
    """Write and flush one shard. Raises CheckpointError when a tensor yields another size than it promised."""
    path = root / shard.path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb", buffering=0) as file:
        for piece in _pieces(shard):
            digest.update(piece)
            rest = piece
            while rest:
                rest = rest[file.write(rest) :]
            progress(len(piece))
        os.fsync(file.fileno())
    return FileEntry(shard.path, shard.size, digest.hexdigest())


def _pieces(shard: ShardPlan) -> Iterator[memoryview]:
    """The bytes of a shard in order, padding included."""
    position = 0
    for offset, tensor in shard.tensors:
        if offset > position:
            yield memoryview(ZEROS)[: offset - position]
        position = offset
        for chunk in tensor.chunks():
            if chunk.size == 0:
                continue
            view = memoryview(chunk.astype(tensor.dtype, order="C", copy=False).data).cast("B")
            position += len(view)
            yield view
        if position != offset + tensor.nbytes:
            raise CheckpointError(
                f"A weight has {position - offset} bytes where its shape promises {tensor.nbytes}.",
                why=f"{tensor.recipe()}",
                remedy="Check that the checkpoint belongs to its configuration.",
            )
