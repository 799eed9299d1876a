"""Norms and gated activations."""

from __future__ import annotations

import numpy as np
import pytest

from ops.reference.gated_activation import gated_activation
from ops.reference.rms_norm import add_rms_norm, rms_norm
from ops.triton.activation import ACTIVATIONS
from ops.triton.gated_activation import gated_activation_kernel
from ops.triton.rms_norm import add_rms_norm_kernel, rms_norm_kernel
from tests.ops.triton.tools import check, poisoned, rounded, tensor


@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (3, 100), (5, 576)])
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(device: str, dtype: str, rows: int, columns: int, name: str) -> None:
    x = np.random.default_rng(rows).normal(0, 3, (rows, 2 * columns))
    y = poisoned((rows, columns), device, dtype)
    gated_activation_kernel[(rows, -(-columns // 64))](
        tensor(x, device, dtype), y, columns, ACTIVATION=ACTIVATIONS[name], DEPENDENT=0, BLOCK=64
    )
    expected = gated_activation(rounded(x, dtype), name)  # type: ignore[arg-type]
    check(y, expected, 0.01 * np.abs(expected), dtype)


@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (4, 100), (2, 576)])
def test_norms(device: str, dtype: str, rows: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    x, residual = random.normal(0, 2, (2, rows, columns))
    weight = random.normal(1, 0.2, columns)
    y, total = poisoned((rows, columns), device, dtype), poisoned((rows, columns), device, dtype)
    block = 1 << (columns - 1).bit_length()
    inputs = [tensor(array, device, dtype) for array in (x, residual, weight)]
    rms_norm_kernel[(rows,)](inputs[0], inputs[2], y, columns, 1e-5, DEPENDENT=0, BLOCK=block)
    check(y, rms_norm(rounded(x, dtype), rounded(weight, dtype), 1e-5), 0, dtype)
    add_rms_norm_kernel[(rows,)](*inputs, y, total, columns, 1e-5, DEPENDENT=0, BLOCK=block)
    normed, summed = add_rms_norm(rounded(x, dtype), rounded(residual, dtype), rounded(weight, dtype), 1e-5)
    check(total, summed, 0, dtype)
    check(y, normed, np.abs(normed), dtype)
