"""Linear over few rows, with bias and gated activation, in whole and in broken tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ops.reference.gated_activation import gated_activation
from ops.triton.linear import bias_rows_kernel, linear_row_kernel, linear_tile_kernel
from tests.ops.triton.tools import check, parts_of, poisoned, rounded, tensor


@pytest.mark.parametrize(
    ("rows", "width", "columns", "parts"),
    [(1, 48, 128, 1), (1, 50, 96, 1), (5, 64, 160, 1), (16, 40, 576, 4), (20, 40, 200, 2)],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_linear(
    device: str, dtype: str, rows: int, width: int, columns: int, parts: int, bias: bool, gated: bool
) -> None:
    random = np.random.default_rng(width)
    height = width * (2 if gated else 1)
    x, w = random.normal(0, 1, (rows, columns)), random.normal(0, 0.1, (height, columns))
    b = random.normal(0, 1, height)
    y = poisoned((rows, width), device, dtype)
    given = tensor(x, device, dtype), tensor(w, device, dtype), tensor(b, device, dtype), y
    flags = {"HAS_BIAS": int(bias), "ACTIVATION": 1 if gated else 0, "DEPENDENT": 0}
    if rows == 1:
        linear_row_kernel[(-(-width // 4),)](*given, width, columns, **flags, BLOCK_N=4, BLOCK_K=64)
    else:
        tiles = (-(-width // 16), parts, -(-rows // 16))
        partial, counters = parts_of(tiles, 16 * 16 * (2 if gated else 1), device)
        linear_tile_kernel[tiles](
            *given, partial, counters, rows, width, columns, **flags, BLOCK_M=16, BLOCK_N=16, BLOCK_K=64, STAGES=2
        )
        assert not counters.any()
    product = rounded(x, dtype) @ rounded(w, dtype).T + (rounded(b, dtype) if bias else 0)
    expected = gated_activation(product) if gated else product
    check(y, expected, 1e-3 * np.abs(rounded(x, dtype)).sum(axis=1, keepdims=True), dtype)


def test_bias_rows(device: str, dtype: str) -> None:
    bias = np.random.default_rng(1).normal(0, 1, 100)
    y = poisoned((3, 100), device, dtype)
    bias_rows_kernel[(3, 2)](tensor(bias, device, dtype), y, 100, DEPENDENT=0, BLOCK=64)
    check(y, np.broadcast_to(rounded(bias, dtype), (3, 100)), 0, dtype)
