"""Device memory of the executor cuda: the cache, and the staging of a step's small inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.cuda import CudaDevice
from ops.errors import CacheTooSmall
from rtcore.config import EngineConfig
from rtcore.executor.base import Int32, Payload
from rtcore.manifest import CacheTensor, Manifest, Variant

Array = NDArray[Any]

#: Of the memory that is free when weights and the largest step's values are in place, what the cache takes.
_SHARE = 0.9
#: Kept for captured graphs.
_MARGIN = 512 << 20
_ALIGNMENT = 256


def choose_blocks(device: CudaDevice, manifest: Manifest, variant: Variant, config: EngineConfig) -> int:
    """Blocks of each cache group: as `config.cache_bytes` says, or what the free memory holds, and never more than
    all sequences need. Raises CacheTooSmall when not a single block fits."""
    block = config.block_size * sum(tensor.slot_bytes for tensor in variant.cache_tensors)
    free, _ = device.memory()
    budget = int(_SHARE * max(0, free - _MARGIN)) if config.cache_bytes is None else config.cache_bytes
    context = manifest.dimensions.context_length
    most = config.max_sequences * math.ceil(context / config.block_size)
    if budget < block:
        raise CacheTooSmall(
            f"{budget:,} bytes of the GPU's memory do not hold a single block of the KV cache.",
            why=f"A block of {config.block_size} tokens takes {block:,} bytes; {free:,} bytes are free.",
            remedy="Free memory on the GPU, or run fewer tokens a step (max_step_tokens).",
            param="cache_bytes",
        )
    return min(budget // block, most)


class DeviceCache:
    """The cache tensors of a variant on the GPU, each [blocks, block_size, *shape], zeroed."""

    def __init__(self, device: CudaDevice, tensors: tuple[CacheTensor, ...], blocks: int, block_size: int) -> None:
        self._device = device
        self.tensors = tensors
        self.block_bytes = {tensor.name: block_size * tensor.slot_bytes for tensor in tensors}
        self.shapes = {tensor.name: (blocks, block_size, *tensor.shape) for tensor in tensors}
        self.addresses: dict[str, int] = {}
        try:
            for tensor in tensors:
                size = blocks * self.block_bytes[tensor.name]
                self.addresses[tensor.name] = device.allocate(size)
                device.fill(self.addresses[tensor.name], size)
        except BaseException:
            self.release()
            raise

    def _group(self, group: int) -> list[tuple[int, int]]:
        """Address and block size in bytes of each tensor of a group, in the manifest's order."""
        names = [tensor.name for tensor in self.tensors if tensor.group == group]
        return [(self.addresses[name], self.block_bytes[name]) for name in names]

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        """Queue the copy of whole blocks of all tensors of a group, in order."""
        for base, size in self._group(group):
            for origin, target in zip(source.tolist(), destination.tolist(), strict=True):
                self._device.copy(base + target * size, base + origin * size, size)

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        """Whole blocks in host memory: for each tensor of a group uint8 [n, bytes of a block]."""
        saved: Payload = []
        for base, size in self._group(group):
            held = np.empty((len(blocks), size), np.uint8)
            for row, block in zip(held, blocks.tolist(), strict=True):
                self._device.to_host(row, base + block * size)
            saved.append(held)
        self._device.synchronize()
        return saved

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        """Write what `save_blocks` gave into as many blocks."""
        for (base, size), held in zip(self._group(group), payload, strict=True):
            for row, block in zip(held, blocks.tolist(), strict=True):
                self._device.to_device(base + block * size, row)
        self._device.synchronize()

    def release(self) -> None:
        """Give the memory back."""
        for address in self.addresses.values():
            self._device.release(address)
        self.addresses = {}


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a step lie in the staging memory: (offset, shape, type) by name, and the bytes in all."""

    places: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, shapes: list[tuple[str, tuple[int, ...], Any]]) -> Layout:
        places, at = {}, 0
        for name, shape, kind in shapes:
            dtype = np.dtype(kind)
            places[name] = (at, shape, dtype)
            at += math.ceil(math.prod(shape) * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        return cls(places, at)


class Staging:
    """Pinned host memory and its counterpart on the GPU; a step's inputs cross in one copy.

    The host side may be written again only after the last copy is done. Several may share the GPU's side, which
    `address` then names: copies and what reads them are in order.
    """

    def __init__(self, device: CudaDevice, size: int, address: int | None = None) -> None:
        self._device = device
        self.size = size
        self.host = device.pinned(size)
        self._own = address is None
        self.address = device.allocate(size) if address is None else address

    def views(self, layout: Layout) -> dict[str, Array]:
        """The host side as arrays."""
        return {
            name: self.host[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for name, (offset, shape, dtype) in layout.places.items()
        }

    def send(self, layout: Layout) -> None:
        """Queue the copy of what was written."""
        self._device.to_device(self.address, self.host[: layout.size])

    def release(self) -> None:
        """Give the memory back."""
        if self._own:
            self._device.release(self.address)
        self._device.release_pinned(self.host)
