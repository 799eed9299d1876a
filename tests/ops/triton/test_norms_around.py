"""Products before and behind a norm that is no kernel of its own: sums, rows not scaled yet, and shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ops.cuda_layout import pack_rows
from ops.layout import QuantForm
from ops.reference.gated_activation import gated_activation
from ops.reference.rms_norm import put_off_rms_norm
from ops.triton.quant_matmul import quant_tile_kernel
from tests.ops.triton.conftest import INTERPRETED
from tests.ops.triton.test_quant import DTYPE, arguments, name_of, random_codes
from tests.ops.triton.tools import check, norms_around, parts_of, poisoned, rounded, tensor, wide

SCALED, ADDED = 1, 2
#: Rows that shares have room for.
ROOM = 32
EPSILON = 1e-5
#: Steps ahead, and rows of x a program: one row has a program of two warps, which share the columns.
WAYS = [
    *((QuantForm(4, 128), depth, rows) for depth, rows in ((0, 32), (1, 8), (1, 1))),
    *((QuantForm(8, 64), depth, rows) for depth, rows in ((2, 8), (0, 16))),
]
#: Rows, width, columns, programs of a tile: whole and broken tiles, more tiles than are read at once.
SIZES = [(1, 130, 300, 3), (5, 64, 160, 1), (20, 72, 576, 2), (32, 72, 128, 1)]


class Product:
    """A weight of one form, and the kernel that multiplies with it."""

    def __init__(self, way: tuple[QuantForm, int, int], height: int, columns: int) -> None:
        self.form, self.depth, self.block_m = way
        self.tile = 16 if self.block_m == 1 else 64
        codes = random_codes(self.form, height, columns)
        self.packed = pack_rows(self.form, codes)
        self.weights: NDArray[np.float64] = codes.dequantised(self.form.bits)[:, :columns].astype(np.float64)

    def run(
        self, x: torch.Tensor, bias: Any, y: torch.Tensor, parts: int, norm: int, gated: bool, **norms: Any
    ) -> None:
        """y = the product, as NORM says."""
        (rows, columns), width, device = x.shape, y.shape[1], str(x.device)
        alone = self.block_m == 1
        grid = (-(-width // self.tile), 1 if alone else parts, -(-rows // self.block_m))
        partial, counters = parts_of(grid, self.tile * self.block_m * (2 if gated else 1), device)
        words, scales = arguments(self.packed, device)
        quant_tile_kernel[grid](
            x, words, scales, tensor(bias, device, DTYPE), y, partial, counters,
            *norms_around(device, DTYPE, **norms), rows, width, columns, self.packed.shape[1],
            BITS=self.form.bits, GROUP=self.form.group, MINIMA=0, PACKED=int(not INTERPRETED), HAS_BIAS=1,
            ACTIVATION=int(gated), NORM=norm, DEPENDENT=0, BLOCK_M=self.block_m, BLOCK_N=self.tile,
            DEPTH=self.depth, SPLIT=2 if alone else 0, WHOLE=0, STAGES=2,
            num_warps=2 * (2 if gated else 1) if alone else 4,
        )  # fmt: skip
        assert not counters.any()


def named(way: Any) -> str:
    return f"{name_of(way[0])}-ahead{way[1]}-rows{way[2]}" if isinstance(way[0], QuantForm) else str(way[0])


@pytest.mark.parametrize("size", SIZES, ids=named)
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_a_product_before_a_norm(
    device: str, way: tuple[QuantForm, int, int], size: tuple[int, int, int, int]
) -> None:
    """The sum is rounded as the next layer reads it; what the next product is left is of the rounded sum."""
    rows, width, columns, parts = size
    rows = 1 if way[2] == 1 else rows
    product = Product(way, width, columns)
    random = np.random.default_rng(rows * width)
    x, residual = random.normal(0, 1, (rows, columns)), random.normal(0, 3, (rows, width))
    bias, gain, unit = random.normal(0, 1, width), random.normal(1, 3, width), 2.0**-4
    y, total = poisoned((rows, width), device, DTYPE), poisoned((rows, width), device, DTYPE)
    squares = poisoned((-(-width // product.tile), ROOM), device, "float32")
    product.run(
        tensor(x, device, DTYPE), bias, y, parts, ADDED, gated=False, squares=squares, total=total, epsilon=EPSILON,
        residual=tensor(residual, device, DTYPE), gain=tensor(gain, device, DTYPE),
        unit=tensor([unit], device, "float32"),
    )  # fmt: skip
    exact = rounded(x, DTYPE) @ product.weights.T + rounded(bias, DTYPE) + rounded(residual, DTYPE)
    reach = np.abs(rounded(x, DTYPE)) @ np.abs(product.weights).T + np.abs(rounded(residual, DTYPE))
    check(total, exact, reach, DTYPE)
    left, shares = put_off_rms_norm(wide(total), rounded(gain, DTYPE), EPSILON, unit, product.tile)
    check(y, left, 0, DTYPE)
    np.testing.assert_allclose(wide(squares)[:, :rows], shares, rtol=1e-5)
    assert np.isnan(wide(squares)[:, rows:]).all()


@pytest.mark.parametrize("size", SIZES, ids=named)
@pytest.mark.parametrize(("gated", "tile"), [(False, 1), (True, 48)])
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_a_product_behind_a_norm(
    device: str, way: tuple[QuantForm, int, int], size: tuple[int, int, int, int], gated: bool, tile: int
) -> None:
    """tile: columns of a share. Shares of rows that are not there are NaN."""
    rows, width, columns, parts = size
    rows = 1 if way[2] == 1 else rows
    width = -(-width // 64) * 64 if gated else width
    height = width * (2 if gated else 1)
    product = Product(way, height, columns)
    random = np.random.default_rng(rows + columns)
    total, bias = rounded(random.normal(0, 3, (rows, columns)), DTYPE), random.normal(0, 1, height)
    gain = random.normal(0.5, 0.2, columns)
    y = poisoned((rows, width), device, DTYPE)
    left, shares = put_off_rms_norm(total, gain, EPSILON, 0.25, tile)
    squares = poisoned((len(shares), ROOM), device, "float32")
    squares[:, :rows] = tensor(shares, device, "float32")
    scale = 1 / np.sqrt(shares.sum(axis=0))[:, None]
    product.run(tensor(left, device, DTYPE), bias, y, parts, SCALED, gated, squares=squares, tiles=len(shares))
    x = rounded(left, DTYPE) * scale
    expected = x @ product.weights.T + rounded(bias, DTYPE)
    reach = np.abs(x) @ np.abs(product.weights).T
    if gated:
        gate, up = reach[:, :width], reach[:, width:]
        reach = gate * (1 + np.abs(expected[:, width:])) + up * (1 + np.abs(expected[:, :width]))
        expected = gated_activation(expected)
    check(y, expected, reach, DTYPE)
