"""Writes a bundle of format 1: plan the weights, check the disk, write, hash, flush, and rename when complete.

docs/bundle.md describes the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.skeleton import CONSTANTS_FILE, SKELETON_FILE, describe
from export.staging import NO_SPACE, Staging, fsync, out_of_disk
from export.tensors import StoredTensor
from export.weights import SHARD_BYTES, Place, Progress, ShardPlan, WeightPlan, write_shard
from rtcore import seal
from rtcore.manifest import MANIFEST_FILE, FileEntry, Manifest

if TYPE_CHECKING:
    import onnx_ir as ir

#: Left free beside the weights for graphs, tokenizer and manifest.
MARGIN_BYTES = 64 << 20
#: Not part of what a version identifies: when and with what it was made.
OUTSIDE_VERSION = ("version", "created", "tools", "seal")


class BundleWriter:
    """Writes one bundle to `target`; use as a context manager, so that a failure leaves nothing behind.

    Order: `place` the tensors of every variant, `write_weights` (or `write_skeleton`), `write` the graphs and
    other files, `finish` with the manifest. Raises ConfigError for a target that cannot be used. A disk that
    fills up anywhere within the context becomes OutOfDisk.
    """

    def __init__(self, target: Path, replace: bool = False, shard_bytes: int = SHARD_BYTES) -> None:
        self._staging = Staging(target, replace)
        self._plan = WeightPlan(shard_bytes)
        self._files: dict[str, FileEntry] = {}
        self._done = False
        self._needed = MARGIN_BYTES

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            self._staging.discard()
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise out_of_disk(self._staging.target.parent, self._needed) from error

    @property
    def folder(self) -> Path:
        """The hidden folder that becomes the bundle."""
        return self._staging.folder

    @property
    def weight_bytes(self) -> int:
        return self._plan.nbytes

    def place(self, folder: str, tensors: Mapping[str, StoredTensor]) -> dict[str, Place]:
        """Decide where tensors go: new ones of each layout into a folder of its own, as in weights/int8/plain."""
        places: dict[str, Place] = {}
        for layout in sorted({tensor.layout for tensor in tensors.values()}):
            chosen = {name: tensor for name, tensor in tensors.items() if tensor.layout == layout}
            placed = self._plan.add(f"{folder}/{layout}", chosen.values())
            places.update(zip(chosen, placed, strict=True))
        return places

    def write_weights(self, progress: Progress, shards: list[ShardPlan] | None = None) -> None:
        """Write all placed tensors, or the given shards."""
        shards = self._plan.shards if shards is None else shards
        self._needed = sum(shard.size for shard in shards) + MARGIN_BYTES
        if shutil.disk_usage(self.folder).free < self._needed:
            raise out_of_disk(self._staging.target.parent, self._needed)
        for shard in shards:
            self._files[shard.path] = write_shard(self.folder, shard, progress)

    def write_skeleton(
        self,
        parameters: Mapping[str, tuple[int, ...]],
        aliases: Mapping[str, tuple[str, ...]],
        constants: Mapping[str, NDArray[np.float32]],
        config: dict[str, Any],
    ) -> None:
        """Write how the placed tensors are made, instead of their data."""
        description, blob = describe(self._plan.shards, parameters, aliases, constants, config)
        self.write(SKELETON_FILE, description)
        self.write(CONSTANTS_FILE, blob)

    def write(self, path: str, content: bytes) -> None:
        """Write one file; path is relative to the bundle."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._files[path] = FileEntry(path, len(content), hashlib.sha256(content).hexdigest())

    def adopt(self, folder: str) -> None:
        """Take files that others wrote below `folder` (a tokenizer) into the bundle."""
        for path in sorted((self.folder / folder).rglob("*")):
            if path.is_file():
                fsync(path)
                relative = path.relative_to(self.folder).as_posix()
                content = path.read_bytes()
                self._files[relative] = FileEntry(relative, len(content), hashlib.sha256(content).hexdigest())

    def finish(self, manifest: Manifest, check: Callable[[Path], None] | None = None) -> Manifest:
        """Write the manifest (its files and version are filled in here) and publish the bundle.

        check: looks at the complete bundle before it is published and raises to prevent it.
        """
        files = tuple(self._files[path] for path in sorted(self._files))
        manifest = msgspec.structs.replace(manifest, files=files)
        manifest = msgspec.structs.replace(manifest, version=content_version(manifest))
        self.write(MANIFEST_FILE, seal.encode(manifest))
        if check is not None:
            check(self.folder)
        self._staging.publish()
        self._done = True
        return manifest


def content_version(manifest: Manifest) -> str:
    """The version of a bundle: a digest over the manifest, which holds the hash of every file."""
    fields = msgspec.to_builtins(manifest)
    for name in OUTSIDE_VERSION:
        fields.pop(name)
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()[:16]


def graph_bytes(model: ir.Model, places: Mapping[str, Place]) -> bytes:
    """A graph as ONNX, its initialisers named in `places` pointing to the bundle's weight files."""
    import onnx_ir as ir

    for name, place in places.items():
        value = model.graph.initializers[name]
        if value.dtype is None or value.shape is None:
            raise ValueError(f"the initialiser {name} has no type or shape")
        value.const_value = ir.ExternalTensor(
            place.path, place.offset, place.nbytes, value.dtype, shape=ir.Shape(value.shape), name=name
        )
    content: bytes = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    return content
