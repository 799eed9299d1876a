"""The meaning of QuantMatMul, and how far a kernel may be off that rounds activations to int8.

Codes are packed as com.microsoft.MatMulNBits packs them: uint8 [N, groups, group * bits / 8], even columns in the
low nibble; a last group that is not full is padded.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ops.reference.gated_activation import Activation, gated_activation

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]

UNIT = 2.0**-24  # rounding of one float32 operation


def unpack(packed: Bytes, bits: Literal[4, 8]) -> Bytes:
    """Codes along the last axis, one a byte: [..., n] bytes give [..., n * 8 / bits] codes."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def dequantise_nbits(
    packed: Bytes,
    scales: Floats,
    zero_points: Bytes | Floats | None,
    *,
    bits: Literal[4, 8],
    columns: int,
) -> NDArray[np.float64]:
    """(code - zero) * scale, exactly: the weights [N, columns] that MatMulNBits means by its inputs.

    packed as above, scales [N, groups] or that flattened; zero_points None for 2^(bits - 1), uint8 [N,
    ceil(groups * bits / 8)] packed alike, or floating as the scales. Products of a code and a float32 scale are
    exact in float64.
    """
    rows, groups = packed.shape[:2]
    codes = unpack(packed, bits).astype(np.float64)
    scale = scales.reshape(rows, groups, 1).astype(np.float64)
    if zero_points is None:
        zero: NDArray[np.float64] = np.full((1, 1, 1), 2.0 ** (bits - 1))
    elif zero_points.dtype == np.uint8:
        zero = unpack(zero_points.reshape(rows, -1).astype(np.uint8), bits)[:, :groups, None].astype(np.float64)
    else:
        zero = zero_points.reshape(rows, groups, 1).astype(np.float64)
    weights: NDArray[np.float64] = (codes - zero) * scale
    return weights.reshape(rows, -1)[:, :columns]


def dequantise(
    weights: Bytes, scales: Floats, minima: Floats | None, *, bits: Literal[4, 8], columns: int
) -> NDArray[np.float64]:
    """The weights [N, columns] of a QuantMatMul: code * scale + minimum, or (code - 2^(bits - 1)) * scale."""
    if minima is None:
        return dequantise_nbits(weights, scales, None, bits=bits, columns=columns)
    zeros = np.zeros_like(scales, dtype=np.float64)
    values = dequantise_nbits(weights, scales, zeros, bits=bits, columns=columns)
    spread = np.repeat(minima.astype(np.float64), weights.shape[2] * 8 // bits, axis=1)[:, :columns]
    return values + spread


def quant_matmul(
    x: Floats,
    weights: Bytes,
    scales: Floats,
    minima: Floats | None = None,
    bias: Floats | None = None,
    residual: Floats | None = None,
    *,
    bits: Literal[4, 8],
    activation: Activation | Literal["none"] = "none",
) -> NDArray[np.float64]:
    """activation(x . W^T + bias) + residual in float64, for x [T, K].

    With an activation other than "none" the rows of W are gate | up, as in GatedActivation, and the result is half
    as wide.
    """
    wide = x.astype(np.float64)
    y = wide @ dequantise(weights, scales, minima, bits=bits, columns=x.shape[1]).T
    if bias is not None:
        y = y + bias
    if activation != "none":
        y = gated_activation(y, activation).astype(np.float64)
    return y if residual is None else y + residual


def int8_activation_bound(
    x: Floats, weights: Floats, scales: Floats, *, bits: Literal[4, 8], group: int
) -> NDArray[np.float64]:
    """The largest error [T, N] of x . W^T in a kernel that rounds x to int8 by row and group, x [T, K], W [N, K].

    Within a group the step is max |x| / 127, each value is off by half of it at most, and the products of integers
    are exact: the error is at most half the step times the group's L1 norm of W. To that comes float32 rounding:
    one product with two scales and one addition a group, where codes and zero points may be summed apart, so that
    terms reach 2^bits * |scale| * |x|. Half a percent on the step allows for the rounding of x / step itself.
    """
    rows, columns = x.shape
    pad = (0, -columns % group)
    blocks = (columns + pad[1]) // group
    x_groups = np.pad(np.abs(x.astype(np.float64)), ((0, 0), pad)).reshape(rows, blocks, group)
    w_groups = np.pad(np.abs(weights.astype(np.float64)), ((0, 0), pad)).reshape(len(weights), blocks, group)
    half_step = x_groups.max(axis=2) / 254 * 1.005
    rounding = (blocks + 8) * UNIT
    reach = np.abs(scales.reshape(len(weights), blocks).astype(np.float64)) * 2.0**bits
    bound: NDArray[np.float64] = half_step @ w_groups.sum(axis=2).T + rounding * (x_groups.sum(axis=2) @ reach.T)
    return bound
