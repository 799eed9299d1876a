"""The memory of a KV cache on the CPU: how many blocks, and one mapping that costs only what is written."""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.errors import BundleDamaged, CacheTooSmall, WrongTarget
from rtcore.config import EngineConfig
from rtcore.executor.base import Int32
from rtcore.machine import available_memory
from rtcore.manifest import MANIFEST_FILE, CacheTensor, Manifest, Variant

_DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
_ALIGNMENT = max(4096, mmap.PAGESIZE)
_SHARE_OF_MEMORY = 0.6
_ASSUMED_MEMORY = 4 << 30
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

Array = NDArray[Any]


def choose_blocks(manifest: Manifest, variant: Variant, config: EngineConfig) -> int:
    """Blocks of each cache group.

    As many as `config.cache_bytes` holds, or as fit into a share of the free memory that the weights leave,
    but never more than `max_sequences` sequences of full context need. Raises CacheTooSmall when not even one
    block fits.
    """
    block = sum(_block_bytes(tensor, config.block_size) for tensor in variant.cache_tensors)
    if not block:
        raise BundleDamaged(
            f"The manifest lists no cache tensors for {variant.precision} on {variant.target}.",
            remedy="Export the model anew.",
            param=MANIFEST_FILE,
        )
    budget = config.cache_bytes
    if budget is None:
        sizes = {entry.path: entry.size for entry in manifest.files}
        # Weights count twice: kernels may keep a packed copy beside the mapped pages.
        weights = 2 * sum(sizes.get(path, 0) for path in variant.weights)
        budget = int(_SHARE_OF_MEMORY * ((available_memory() or _ASSUMED_MEMORY) - weights))
    context = manifest.dimensions.context_length
    if budget < block:
        raise CacheTooSmall(
            f"{max(0, budget):,} bytes of KV cache do not hold a single sequence.",
            why=f"A block of {config.block_size} tokens takes {block:,} bytes, the whole context of {context} "
            f"tokens {block * math.ceil(context / config.block_size):,}.",
            remedy="Give the cache more memory (cache_bytes), or free some on this machine.",
            param="cache_bytes",
        )
    return min(budget // block, config.max_sequences * math.ceil(context / config.block_size))


def _block_bytes(tensor: CacheTensor, block_size: int) -> int:
    return block_size * math.prod(tensor.shape) * np.dtype(_dtype(tensor)).itemsize


def _dtype(tensor: CacheTensor) -> type[np.generic]:
    if tensor.dtype not in _DTYPES:
        raise WrongTarget(
            f"The cache tensor {tensor.name} is {tensor.dtype}.",
            why=f"On the CPU a cache can be {', '.join(_DTYPES)}.",
            remedy="Export the model for the target cpu.",
            param="target",
        )
    return _DTYPES[tensor.dtype]


class CacheMemory:
    """The cache tensors of a variant as numpy arrays [blocks, block_size, *shape] in one anonymous mapping.

    The mapping reserves addresses, not memory: a page costs memory once it is written. Huge pages are
    refused, because one of them would cover blocks that nobody uses yet.
    """

    def __init__(self, tensors: tuple[CacheTensor, ...], blocks: int, block_size: int) -> None:
        sizes = [blocks * _block_bytes(tensor, block_size) for tensor in tensors]
        places = [0]
        for size in sizes:
            places.append(places[-1] + math.ceil(size / _ALIGNMENT) * _ALIGNMENT)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self._mapping = mmap.mmap(-1, places[-1], flags=flags)
        except (OSError, OverflowError) as error:
            raise CacheTooSmall(
                f"{places[-1]:,} bytes for the KV cache cannot be reserved.",
                why=str(error),
                remedy="Choose a smaller cache (cache_bytes).",
                param="cache_bytes",
            ) from error
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        self._places = {tensor.name: place for tensor, place in zip(tensors, places, strict=False)}
        self.arrays: dict[str, Array] = {
            tensor.name: np.frombuffer(
                self._mapping, _dtype(tensor), size // np.dtype(_dtype(tensor)).itemsize, place
            ).reshape(blocks, block_size, *tensor.shape)
            for tensor, size, place in zip(tensors, sizes, places, strict=False)
        }

    def release_blocks(self, name: str, blocks: Int32) -> None:
        """Give back the pages that lie wholly within blocks of a tensor; blocks: int32 [n], ascending."""
        if not hasattr(mmap, "MADV_DONTNEED") or not len(blocks):
            return
        size = self.arrays[name][0].nbytes
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
            begin = self._places[name] + int(run[0]) * size
            end = begin + len(run) * size
            first = -(-begin // _ALIGNMENT) * _ALIGNMENT
            length = end // _ALIGNMENT * _ALIGNMENT - first
            if length > 0:
                self._mapping.madvise(mmap.MADV_DONTNEED, first, length)

    def release(self) -> None:
        """Give the memory back to the system; the addresses stay valid and read as zeros."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)
