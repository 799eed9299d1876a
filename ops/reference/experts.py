"""The meaning of Experts: rows routed to the best of many gated feed-forward layers.

Shazeer et al. 2017 (arXiv 1701.06538); softmax over all experts and top-k: Fedus et al. 2021 (arXiv 2101.03961),
weights normalised over the chosen ones: Jiang et al. 2024 (arXiv 2401.04088).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.reference.gated_activation import Activation, gated_activation

Floats = NDArray[np.floating[Any]]
Float64 = NDArray[np.float64]


def route(
    logits: Floats, top_k: int, *, normalise: bool = False, scale: float = 1.0
) -> tuple[NDArray[np.int64], Float64]:
    """The experts of each row, the best first (of equal ones that of the lower number), and their weights.

    logits [T, experts]; both results [T, top_k].
    """
    wide = logits.astype(np.float64)
    chosen = np.argsort(-wide, axis=1, kind="stable")[:, :top_k]
    decay = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))
    weights = np.take_along_axis(decay, chosen, axis=1)
    total = (weights if normalise else decay).sum(axis=1, keepdims=True)
    return chosen, weights / total * scale


def experts(
    x: Floats,
    logits: Floats,
    gate_up: Floats,
    down: Floats,
    top_k: int,
    *,
    normalise: bool = False,
    scale: float = 1.0,
    activation: Activation = "silu",
) -> Float64:
    """y [T, H] for x [T, H], logits [T, experts], gate_up [experts, 2 * I, H] and down [experts, H, I]."""
    chosen, weights = route(logits, top_k, normalise=normalise, scale=scale)
    wide = x.astype(np.float64)
    y: Float64 = np.zeros_like(wide)
    for expert in np.unique(chosen):
        rows, ranks = np.nonzero(chosen == expert)
        inner = gated_activation(wide[rows] @ gate_up[expert].astype(np.float64).T, activation)
        y[rows] += weights[rows, ranks][:, None] * (inner @ down[expert].astype(np.float64).T)
    return y
