"""kernels.json: the GPU kernels that a bundle packs for one architecture, as structs."""

from __future__ import annotations

import msgspec

KERNELS_FOLDER = "kernels"
KERNELS_FILE = "kernels.json"


class KernelRecord(msgspec.Struct, frozen=True):
    """One compiled kernel.

    key: what it computes, and for which types and shapes; the launcher makes the same text from a node. file: its
    binary, beside kernels.json. entry: its name there. arguments: a letter each, p pointer, i int32, f float; a
    capital one must be a multiple of 16. After them every kernel takes two pointers to scratch memory, which are
    null. warps: of 32 threads (64 on AMD) a program. shared: bytes of dynamic shared memory. constants: what it
    was compiled with, among them the tile sizes that a grid follows from. rows, columns: it serves up to so many
    rows and from so many columns on; of several that fit, the first is taken.
    """

    key: str
    file: str
    entry: str
    arguments: str
    warps: int
    shared: int
    constants: dict[str, int]
    rows: int
    columns: int

    def __post_init__(self) -> None:
        sizes = {"warps": self.warps, "shared": self.shared, "rows": self.rows, "columns": self.columns}
        for name, value in {**sizes, **self.constants}.items():
            if not 0 <= value < 2**31:
                raise ValueError(f"{name} of kernel {self.key} is {value}")


class KernelSet(msgspec.Struct, frozen=True):
    """The kernels of one architecture (sm_90, gfx942), in the launcher's order, and the compiler's version."""

    architecture: str
    triton: str
    kernels: list[KernelRecord]


def folder_of(architecture: str) -> str:
    """The folder of an architecture's kernels, relative to the bundle."""
    return f"{KERNELS_FOLDER}/{architecture}"


def index_of(architecture: str) -> str:
    """The kernels.json of an architecture, relative to the bundle."""
    return f"{folder_of(architecture)}/{KERNELS_FILE}"
