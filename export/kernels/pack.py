"""Packs compiled kernels: kernels/<architecture>/*.cubin and kernels.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from export.kernels.architecture import Architecture
from export.kernels.compile import Compiled
from rtcore.kernels import KernelRecord, KernelSet, folder_of, index_of


def pack(architecture: Architecture, kernels: Iterable[list[Compiled]]) -> Iterator[tuple[str, bytes]]:
    """The files of one architecture, (path in the bundle, content), kernels.json last.

    kernels: the binaries of each variant.
    """
    import triton

    folder = folder_of(architecture.name)
    records: list[KernelRecord] = []
    for binaries in kernels:
        for compiled in binaries:
            variant = compiled.variant
            file = f"{len(records):03d}-{variant.kernel}.{architecture.binary}"
            records.append(
                KernelRecord(
                    key=variant.key,
                    file=file,
                    entry=compiled.entry,
                    arguments=variant.letters(),
                    warps=compiled.tiles.warps,
                    shared=compiled.shared,
                    constants=compiled.constants,
                    rows=compiled.tiles.rows,
                    columns=compiled.tiles.columns,
                )
            )
            yield f"{folder}/{file}", compiled.binary
    index = KernelSet(architecture.name, triton.__version__, records)
    yield index_of(architecture.name), msgspec.json.format(msgspec.json.encode(index), indent=1)
