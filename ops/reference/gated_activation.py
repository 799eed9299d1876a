"""The meaning of GatedActivation (Shazeer 2020, arXiv 2002.05202; GELU: Hendrycks and Gimpel, arXiv 1606.08415)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Activation = Literal["silu", "gelu", "gelu_tanh"]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(x: Floats, activation: Activation) -> Floats:
    """x * sigmoid(x), x * Phi(x), or the latter with Phi approximated through tanh; in the type of x."""
    y: Floats
    if activation == "silu":
        # exp only of negative numbers, so that nothing overflows.
        decay = np.exp(-np.abs(x))
        y = x * np.where(x < 0, decay, 1.0) / (1.0 + decay)
    elif activation == "gelu":
        y = 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(x.dtype))
    else:
        y = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return y


def gated_activation(x: Floats, activation: Activation = "silu") -> Floats:
    """activation(gate) * up for rows gate | up; x [..., 2 * I] gives [..., I]."""
    gate, up = np.split(x, 2, axis=-1)
    y: Floats = activate(gate, activation) * up
    return y
