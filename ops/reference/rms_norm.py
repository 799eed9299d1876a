"""The meaning of RMSNorm and AddRMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), and of a norm put off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, in the type of x."""
    mean: Floats = np.mean(x * x, axis=-1, keepdims=True)
    y: Floats = x / np.sqrt(mean + epsilon) * weight
    return y


def add_rms_norm(x: Floats, residual: Floats, weight: Floats, epsilon: float) -> tuple[Floats, Floats]:
    """(norm of x + residual, x + residual)."""
    total = x + residual
    return rms_norm(total, weight, epsilon), total


def put_off_rms_norm(
    total: Floats, weight: Floats, epsilon: float, unit: float, tile: int
) -> tuple[Floats, Floats]:
    """(total * weight * unit, shares [tiles, rows] of each row's mean square): a row of the first divided by the
    root of the sum of its shares is `rms_norm`. A share is of `tile` columns."""
    columns = total.shape[1]
    starts = np.arange(0, columns, tile)
    counts = np.minimum(columns - starts, tile)
    squares = np.add.reduceat(total * total, starts, axis=1) + epsilon * counts
    shares: Floats = (squares * unit**2 / columns).T
    return total * weight * unit, shares
