"""Products before and behind a norm that is no kernel of its own: sums, rows that are not scaled yet, and shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ops.cuda_layout import pack_rows
from ops.layout import QuantForm
from ops.reference.gated_activation import gated_activation
from ops.reference.rms_norm import add_rms_norm, put_off_rms_norm
from ops.triton.linear import linear_row_kernel, linear_tile_kernel
from ops.triton.quant_matmul import quant_tile_kernel
from tests.ops.triton.conftest import INTERPRETED
from tests.ops.triton.test_quant import arguments, random_codes
from tests.ops.triton.tools import check, norms_around, parts_of, poisoned, rounded, tensor, wide

SCALED, ADDED = 1, 2
EPSILON = 1e-5
#: rows, width, columns, programs of a tile: whole and broken tiles, one row, more rows than a tile has.
SIZES = [(1, 50, 96, 1), (1, 130, 300, 3), (5, 64, 160, 1), (7, 96, 576, 4), (20, 40, 200, 2), (64, 72, 128, 1)]
#: None: dense. A form and the steps that words are ahead.
Weights = tuple[QuantForm, int] | None
WEIGHTS: list[Weights] = [
    *(
        None,
        (QuantForm(4, 128), 0),
        (QuantForm(4, 128), 1),
        (QuantForm(8, 64), 2),
        (QuantForm(4, 32, minima=True), 0),
    )
]
Size = tuple[int, int, int, int]
CASES: list[tuple[Weights, Size]] = [
    (weights, size) for weights in WEIGHTS for size in (SIZES if weights is None else (SIZES[1], SIZES[4]))
]


def name_of(given: Weights | Size) -> str:
    if given is None:
        return "dense"
    if isinstance(given[0], int):
        return "-".join(map(str, given))
    form, depth = given[0], given[1]
    return f"int{form.bits}.{form.group}{'.minima' if form.minima else ''}-ahead{depth}"


class Product:
    """Weights of one kind, and the kernel that multiplies with them."""

    def __init__(self, given: Weights, height: int, columns: int, dtype: str) -> None:
        self.given = given
        if given is None:
            self.packed: Any = np.random.default_rng(height).normal(0, 0.1, (height, columns))
            self.weights: NDArray[np.float64] = rounded(self.packed, dtype)
        else:
            codes = random_codes(given[0], height, columns)
            self.packed = pack_rows(given[0], codes)
            self.weights = codes.dequantised(given[0].bits)[:, :columns].astype(np.float64)

    def tile(self, rows: int) -> int:
        """Columns of y that a program has."""
        if self.given is None:
            return 4 if rows == 1 else 16
        return 16 if self.alone(rows) else 64

    def alone(self, rows: int) -> bool:
        """Whether the product is that of one row with quantised weights."""
        return self.given is not None and self.given[1] > 0 and rows == 1

    def run(
        self,
        x: torch.Tensor,
        bias: Any,
        y: torch.Tensor,
        parts: int,
        norms: tuple[Any, ...],
        norm: int,
        gated: bool,
    ) -> None:
        """y = the product, as NORM says."""
        (rows, columns), width, dtype = x.shape, y.shape[1], str(y.dtype).removeprefix("torch.")
        device = str(x.device)
        given_bias = tensor(bias, device, dtype)
        flags = {"HAS_BIAS": 1, "ACTIVATION": int(gated), "NORM": norm, "DEPENDENT": 0}
        tiles = -(-width // self.tile(rows))
        if self.given is None and rows == 1:
            w = tensor(self.packed, device, dtype)
            linear_row_kernel[(tiles,)](x, w, given_bias, y, *norms, width, columns, **flags, BLOCK_N=4, BLOCK_K=64)
            return
        alone = self.alone(rows)
        block_m = 1 if alone else 16 if self.given is None or not self.given[1] else 8
        grid = (tiles, 1 if alone else parts, -(-rows // block_m))
        partial, counters = parts_of(grid, self.tile(rows) * block_m * (2 if gated else 1), device)
        flags |= {"BLOCK_M": block_m, "BLOCK_N": self.tile(rows), "STAGES": 2}
        if self.given is None:
            w = tensor(self.packed, device, dtype)
            linear_tile_kernel[grid](
                x, w, given_bias, y, partial, counters, *norms, rows, width, columns, **flags, BLOCK_K=64
            )
        else:
            form, depth = self.given
            words, scales = arguments(self.packed, device)
            quant_tile_kernel[grid](
                x, words, scales, given_bias, y, partial, counters, *norms, rows, width, columns, self.packed.shape[1],
                BITS=form.bits, GROUP=form.group, MINIMA=int(form.minima), PACKED=int(not INTERPRETED), DEPTH=depth,
                SPLIT=2 if alone else 0, WHOLE=0, **flags, num_warps=(4 if gated else 2) if alone else 4,
            )  # fmt: skip
        assert not counters.any()


@pytest.mark.parametrize(("weights", "size"), CASES, ids=name_of)
def test_a_product_before_a_norm(device: str, dtype: str, weights: Weights, size: Size) -> None:
    """The sum is rounded as the next layer reads it; what the next product is left is of the rounded sum."""
    rows, width, columns, parts = size
    dtype = dtype if weights is None else "float16"
    product = Product(weights, width, columns, dtype)
    random = np.random.default_rng(rows * width)
    x, residual = random.normal(0, 1, (rows, columns)), random.normal(0, 3, (rows, width))
    bias, gain, unit = random.normal(0, 1, width), random.normal(1, 3, width), 2.0**-4
    y, total = poisoned((rows, width), device, dtype), poisoned((rows, width), device, dtype)
    squares = poisoned((-(-width // product.tile(rows)), rows), device, "float32")
    norms = norms_around(
        device, dtype, squares=squares, tiles=0, residual=tensor(residual, device, dtype), total=total,
        gain=tensor(gain, device, dtype), unit=tensor([unit], device, "float32"), epsilon=EPSILON,
    )  # fmt: skip
    product.run(tensor(x, device, dtype), bias, y, parts, norms, ADDED, gated=False)
    exact = rounded(x, dtype) @ product.weights.T + rounded(bias, dtype)
    reach = np.abs(rounded(x, dtype)) @ np.abs(product.weights).T + np.abs(rounded(residual, dtype))
    if weights is not None and weights[0].minima:
        reach = reach + np.abs(rounded(x, dtype)).sum(axis=1, keepdims=True)
    check(total, exact + rounded(residual, dtype), reach if weights is not None else 1e-2 * reach, dtype)
    # In bfloat16 nothing overflows that did not before: the unit is float16's.
    used = unit if dtype == "float16" else 1.0
    left, shares = put_off_rms_norm(wide(total), rounded(gain, dtype), EPSILON, used, product.tile(rows))
    check(y, left, 0, dtype)
    np.testing.assert_allclose(wide(squares), shares, rtol=1e-5)


@pytest.mark.parametrize(("weights", "size"), CASES, ids=name_of)
@pytest.mark.parametrize(("gated", "tile"), [(False, 1), (True, 48), (False, 0)])
def test_a_product_behind_a_norm(
    device: str, dtype: str, weights: Weights, size: Size, gated: bool, tile: int
) -> None:
    """tile: columns of a share; without any x is normalised already."""
    rows, width, columns, parts = size
    dtype = dtype if weights is None else "float16"
    if gated and weights is not None:
        width = -(-width // 64) * 64
    height = width * (2 if gated else 1)
    product = Product(weights, height, columns, dtype)
    random = np.random.default_rng(rows + columns)
    total, bias = random.normal(0, 3, (rows, columns)), random.normal(0, 1, height)
    gain = random.normal(0.5, 0.2, columns)
    total = rounded(total, dtype)
    y = poisoned((rows, width), device, dtype)
    if tile:
        left, shares = put_off_rms_norm(total, gain, EPSILON, 0.25, tile)
        squares = tensor(shares, device, "float32")
        norms = norms_around(device, dtype, squares=squares, tiles=len(shares))
        scale = 1 / np.sqrt(shares.sum(axis=0))[:, None]
    else:
        left, norms, scale = (
            add_rms_norm(total, np.zeros_like(total), gain, EPSILON)[0],
            norms_around(device, dtype),
            1,
        )
    product.run(tensor(left, device, dtype), bias, y, parts, norms, SCALED, gated)
    x = rounded(left, dtype) * scale
    exact = x @ product.weights.T + rounded(bias, dtype)
    reach = np.abs(x) @ np.abs(product.weights).T
    if weights is not None and weights[0].minima:
        reach = reach + np.abs(x).sum(axis=1, keepdims=True)
    reach = reach if weights is not None else 1e-2 * reach
    expected = exact
    if gated:
        gate, up = reach[:, :width], reach[:, width:]
        reach = gate * (1 + np.abs(exact[:, width:])) + up * (1 + np.abs(exact[:, :width]))
        expected = gated_activation(exact)
    check(y, expected, reach, dtype)
