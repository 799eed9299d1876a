"""Batch sizes for which decode steps are captured as CUDA graphs."""

from __future__ import annotations

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def bucket_sizes(most: int) -> tuple[int, ...]:
    """The sizes up to `most` sequences, `most` itself the last."""
    largest = min(most, _SIZES[-1])
    return (*(size for size in _SIZES if size < largest), largest)


def bucket_for(rows: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest size that holds `rows`, None where all are smaller."""
    return next((size for size in sizes if size >= rows), None)
