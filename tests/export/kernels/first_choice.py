"""One binary of a variant, for tests that compile in processes: what they run must be found by its name."""

from __future__ import annotations

from export.kernels import compile as compiling
from export.kernels.architecture import architecture
from export.kernels.tuning import tiles
from export.kernels.variant import Variant


def compile_first(variant: Variant, target: str) -> tuple[bytes, int]:
    """The binary of the table's first tiles, and the bytes of shared memory by which it is over the limit."""
    chosen = architecture(target)
    found = compiling._fitting(variant, tiles(variant.kernel, chosen.name)[0], chosen)
    return found.binary, max(0, found.shared - chosen.shared_memory)
