"""A skeleton: a bundle without weight data that knows how each of its weights is made from a checkpoint.

skeleton.json holds, for every weight file to come, its size and its tensors (offset and recipe); the shapes of
the checkpoint's tensors; and where the constants lie in skeleton.bin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.stored import StoredReader
from export.tensors import RowSource
from export.weights import ShardPlan
from ops.errors import BundleDamaged

SKELETON_FILE = "skeleton.json"
CONSTANTS_FILE = "skeleton.bin"


class TensorToFill(msgspec.Struct, frozen=True):
    """One tensor of a shard: byte offset, bytes, and its recipe."""

    offset: int
    nbytes: int
    recipe: dict[str, Any]


class ShardToFill(msgspec.Struct, frozen=True):
    path: str
    size: int
    tensors: list[TensorToFill]


class ConstantPlace(msgspec.Struct, frozen=True):
    """Where a float32 array lies in skeleton.bin; offset and count in values."""

    offset: int
    count: int


class Skeleton(msgspec.Struct, frozen=True):
    """All that filling needs: shards, the parameters' shapes, the names of tied ones by the one that recipes
    use, the constants by digest, the model's config."""

    shards: list[ShardToFill]
    parameters: dict[str, tuple[int, ...]]
    aliases: dict[str, tuple[str, ...]]
    constants: dict[str, ConstantPlace]
    config: dict[str, Any]


def describe(
    shards: list[ShardPlan],
    parameters: Mapping[str, tuple[int, ...]],
    aliases: Mapping[str, tuple[str, ...]],
    constants: Mapping[str, NDArray[np.float32]],
    config: dict[str, Any],
) -> tuple[bytes, bytes]:
    """The content of skeleton.json and of skeleton.bin."""
    places, blob = {}, bytearray()
    for digest, array in sorted(constants.items()):
        places[digest] = ConstantPlace(len(blob) // 4, array.size)
        blob += array.astype("<f4", order="C", copy=False).tobytes()
    to_fill = [
        ShardToFill(
            shard.path, shard.size, [TensorToFill(at, part.nbytes, part.recipe()) for at, part in shard.tensors]
        )
        for shard in shards
    ]
    skeleton = Skeleton(to_fill, dict(parameters), dict(aliases), places, config)
    return msgspec.json.encode(skeleton), bytes(blob)


def read_skeleton(folder: Path) -> tuple[Skeleton, NDArray[np.float32]]:
    """The description of a skeleton and its constants, one after the other. Raises BundleDamaged."""
    try:
        skeleton = msgspec.json.decode((folder / SKELETON_FILE).read_bytes(), type=Skeleton)
        values = np.fromfile(folder / CONSTANTS_FILE, dtype="<f4")
    except (OSError, msgspec.MsgspecError) as error:
        raise _damaged(folder, str(error)) from error
    return skeleton, values


def plan_of(
    folder: Path, skeleton: Skeleton, values: NDArray[np.float32], tensor: Callable[[str], RowSource]
) -> list[ShardPlan]:
    """The shards to write, with every tensor bound to a checkpoint through `tensor`."""

    def constant(digest: str) -> NDArray[np.float32]:
        place = skeleton.constants[digest]
        return values[place.offset : place.offset + place.count]

    reader = StoredReader(tensor, constant)
    plans = []
    for shard in skeleton.shards:
        plan = ShardPlan(shard.path)
        for item in shard.tensors:
            try:
                stored = reader.stored(item.recipe)
            except (KeyError, TypeError, ValueError) as error:
                raise _damaged(folder, f"a recipe cannot be followed: {error!r}") from error
            place = plan.add(stored)
            if (place.offset, place.nbytes) != (item.offset, item.nbytes):
                raise _damaged(folder, f"{shard.path} has a tensor at {item.offset}, expected at {place.offset}")
        plans.append(plan)
    return plans


def _damaged(folder: Path, why: str) -> BundleDamaged:
    return BundleDamaged(
        f"The skeleton {folder} is damaged.", why=f"{why}.", remedy="Export the skeleton again or copy it again."
    )
