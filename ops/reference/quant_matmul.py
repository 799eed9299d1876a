"""The meaning of QuantMatMul and QuantGather, and how far a kernel may be off that rounds activations to int8.

Weights are in the layout of `ops.layout`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ops.layout import QuantForm, unpack
from ops.reference.gated_activation import Activation, gated_activation
from ops.reference.rms_norm import rms_norm

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]
Float64 = NDArray[np.float64]

UNIT = 2.0**-24  # rounding of one float32 operation


def dequantise(weights: Bytes, form: QuantForm, rows: int, columns: int) -> Float64:
    """The weights [rows, columns], exactly: code * scale + minimum, or (code - 2^(bits - 1)) * scale."""
    codes = unpack(form, weights)
    values = codes.values.astype(np.float64)
    if codes.minima is None:
        values = (values - 2.0 ** (form.bits - 1)) * codes.scales[:, :, None]
    else:
        values = values * codes.scales[:, :, None] + codes.minima[:, :, None].astype(np.float64)
    return values.reshape(len(values), -1)[:rows, :columns]


def quant_gather(weights: Bytes, ids: NDArray[np.int64], form: QuantForm, rows: int, columns: int) -> Float64:
    """Rows `ids` of the weights: [..., columns] for ids [...]."""
    return dequantise(weights, form, rows, columns)[ids]


def quant_matmul(
    x: Floats,
    weights: Bytes,
    form: QuantForm,
    rows: int,
    *,
    norm: Floats | None = None,
    norm_epsilon: float = 1e-6,
    bias: Floats | None = None,
    residual: Floats | None = None,
    activation: Activation | Literal["none"] = "none",
) -> Float64:
    """activation(norm(x) . W^T + bias) + residual in float64, for x [T, K] and W [rows, K].

    With an activation other than "none" the rows of W are gate | up, as in GatedActivation, and the result is half
    as wide.
    """
    wide: Floats = x.astype(np.float64)
    if norm is not None:
        wide = rms_norm(wide, norm.astype(np.float64), norm_epsilon)
    y: Float64 = wide @ dequantise(weights, form, rows, x.shape[1]).T
    if bias is not None:
        y = y + bias
    if activation != "none":
        y = gated_activation(y, activation).astype(np.float64)
    return y if residual is None else y + residual


def int8_activation_bound(x: Floats, weights: Bytes, form: QuantForm, rows: int) -> Float64:
    """The largest error [T, rows] of x . W^T in a kernel that rounds x to int8 by row and group, x [T, K].

    Within a group the step is max |x| / 127, each value is off by half of it at most, and the products of integers
    are exact: the error is at most half the step times the group's L1 norm of W. Half a percent on the step allows
    for the rounding of x / step itself. To that comes float32 rounding: of the step, of its products with the
    weights' scale and with the sum of codes, and of two additions a group, on terms that reach the rounded |x|
    times code * |scale| + |minimum|.
    """
    step = _by_group(np.abs(x.astype(np.float64)), form.group).max(axis=2) / 127 * 1.005
    w_groups = _by_group(np.abs(dequantise(weights, form, rows, x.shape[1])), form.group)
    rounded = _by_group(np.abs(x.astype(np.float64)), form.group) + step[:, :, None] / 2
    reach = _by_group(_reach(weights, form, rows, x.shape[1]), form.group)
    arithmetic = (2 * step.shape[1] + 8) * UNIT * np.einsum("tgk,ngk->tn", rounded, reach)
    bound: Float64 = step / 2 @ w_groups.sum(axis=2).T + arithmetic
    return bound


def float32_activation_bound(x: Floats, weights: Bytes, form: QuantForm, rows: int) -> Float64:
    """The largest error [T, rows] of x . W^T where only float32 rounding is between: of each weight twice, and of a
    product and a sum for each column."""
    reach = _reach(weights, form, rows, x.shape[1])
    bound: Float64 = (x.shape[1] + 8) * UNIT * (np.abs(x.astype(np.float64)) @ reach.T)
    return bound


def _by_group(values: Float64, group: int) -> Float64:
    """[n, K] as [n, groups, group], padded with zeros."""
    padded: Float64 = np.pad(values, ((0, 0), (0, -values.shape[1] % group)))
    return padded.reshape(len(values), -1, group)


def _reach(weights: Bytes, form: QuantForm, rows: int, columns: int) -> Float64:
    """The magnitude [rows, columns] of what is added up for each weight."""
    codes = unpack(form, weights)
    if codes.minima is None:
        return np.abs(dequantise(weights, form, rows, columns))
    steps = codes.values.astype(np.float64) * np.abs(codes.scales.astype(np.float64))[:, :, None]
    values = steps + np.abs(codes.minima.astype(np.float64))[:, :, None]
    reach: Float64 = values.reshape(len(values), -1)[:rows, :columns]
    return reach
