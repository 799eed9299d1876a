"""The meaning of RMSNorm and AddRMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

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
