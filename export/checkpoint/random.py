"""Random weights for a bare configuration: the same numbers for a seed and a name, on every machine.

Every tensor is cut into blocks of rows and each block has its own counter-based generator (Philox, keyed by seed,
name and block), so that any rows can be made alone and nothing is held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.base import Checkpoint
from export.checkpoint.huggingface import copy_tokenizer
from export.tensors import RowSource
from ops.errors import CheckpointError

BLOCK_BYTES = 1 << 20
DEFAULT_STD = 0.02


class RandomCheckpoint(Checkpoint):
    """Weights as an untrained model has them: normal with the configuration's initializer_range, norms at 1,
    biases at 0. `shapes` are those of the model's parameters; `folder` may hold a tokenizer."""

    kind = "random"

    def __init__(
        self, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], seed: int, folder: Path | None = None
    ) -> None:
        self.config = config
        self.shapes = shapes
        self.seed = seed
        self.folder = folder
        self.name = f"random:{seed}"
        std = config.get("initializer_range", DEFAULT_STD)
        self.std = float(std) if isinstance(std, (int, float)) else DEFAULT_STD

    def names(self) -> Iterable[str]:
        return self.shapes.keys()

    def tensor(self, name: str) -> RowSource:
        if name not in self.shapes:
            raise CheckpointError(f"The model has no parameter {name!r}.")
        shape = tuple(self.shapes[name])
        if name.endswith("bias"):
            return RandomTensor(name, shape, self.seed, 0.0, 0.0)
        if len(shape) == 1:
            return RandomTensor(name, shape, self.seed, self._norm(), 0.0)
        return RandomTensor(name, shape, self.seed, 0.0, self.std)

    def _norm(self) -> float:
        """A norm's neutral weight: families that multiply by 1 + w store it as 0."""
        return 0.0 if str(self.config.get("model_type", "")).startswith("gemma") else 1.0

    def write_tokenizer(self, folder: Path) -> None:
        if self.folder is not None:
            copy_tokenizer(self.folder, folder)

    def sha256(self) -> str:
        """Over the seed and the shapes, for no file holds these weights."""
        text = repr((self.seed, self.std, sorted((name, tuple(shape)) for name, shape in self.shapes.items())))
        return hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        """Nothing is open."""


class RandomTensor(RowSource):
    """mean + std * normal; constant where std is 0."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int, mean: float, std: float) -> None:
        self.name = name
        self.shape = shape
        self.key = f"tensor:{name}"
        self.seed = seed
        self.mean = mean
        self.std = std
        self._width = int(np.prod(shape[1:], dtype=np.int64))
        self._block_rows = max(1, BLOCK_BYTES // (4 * max(1, self._width)))

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        out = np.full((stop - start, *self.shape[1:]), self.mean, np.float32)
        if self.std == 0.0:
            return out
        position = start
        while position < stop:
            number, skip = divmod(position, self._block_rows)
            take = min(self._block_rows - skip, stop - position)
            at = position - start
            out[at : at + take] += self._block(number)[skip : skip + take]
            position += take
        return out

    def _block(self, number: int) -> NDArray[np.float32]:
        digest = hashlib.sha256(f"{self.seed}:{self.name}:{number}".encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        rows = min(self._block_rows, self.shape[0] - number * self._block_rows)
        normal = generator.standard_normal((rows, *self.shape[1:]), dtype=np.float32)
        normal *= np.float32(self.std)
        return normal

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}
