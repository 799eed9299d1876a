"""The meaning of CopyBlocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def copy_blocks(cache: NDArray[Any], source: NDArray[np.int32], destination: NDArray[np.int32]) -> None:
    """cache[destination[i]] = cache[source[i]] for each i in order, in place; cache [blocks, block_size, ...]."""
    for start, end in zip(source, destination, strict=True):
        cache[end] = cache[start]
