"""Activations inside kernels: numbers stand for names, as the launcher's records do."""

from __future__ import annotations

import triton
import triton.language as tl

#: What a kernel's constant ACTIVATION means.
ACTIVATIONS = {"none": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}


@triton.jit
def tanh(x):
    """tanh in float32 by the logistic function, which does not overflow."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """x * sigmoid(x), x * Phi(x), or the latter with Phi approximated through tanh; float32."""
    if ACTIVATION == 1:
        x = x * tl.sigmoid(x)
    elif ACTIVATION == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == 3:
        x = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return x
