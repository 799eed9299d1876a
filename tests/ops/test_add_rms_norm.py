"""AddRMSNorm against its definition."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.reference.rms_norm import add_rms_norm, rms_norm
from tests.ops.runner import KERNELS, REFUSED, run

UNIT = 2.0**-24
SHAPES = [(0, 8), (1, 1), (1, 5), (3, 16), (7, 67), (40, 576), (2, 9001)]


def tolerance(width: int) -> float:
    """Relative error: the mean of squares sums positive terms in at least four lanes, its root halves the error;
    the sum, the root, the quotient and two products round once each."""
    return (0.5 * (width / 4 + 8) + 6) * UNIT


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape: tuple[int, int], kernels: str) -> None:
    rng = np.random.default_rng(0)
    x, residual = rng.standard_normal((2, *shape)).astype(np.float32)
    weight = rng.uniform(-2, 2, shape[1]).astype(np.float32)
    both = run("AddRMSNorm", {"x": x, "residual": residual, "weight": weight}, {"epsilon": 1e-5}, kernels=kernels)
    np.testing.assert_array_equal(both["sum"], x + residual)
    # The norm is of the sum as rounded to float32.
    want = rms_norm(both["sum"].astype(np.float64), weight.astype(np.float64), 1e-5)
    np.testing.assert_allclose(both["y"], want, rtol=tolerance(shape[1]), atol=0)

    exact, total = add_rms_norm(x.astype(np.float64), residual.astype(np.float64), weight.astype(np.float64), 1e-5)
    np.testing.assert_allclose(both["sum"], total, rtol=UNIT, atol=0)
    # Against the unrounded sum: one rounding of the sum, relative to the largest weight and the sum's own size.
    slack = tolerance(shape[1]) + 2 * UNIT
    np.testing.assert_allclose(both["y"], exact, rtol=slack, atol=0)


@pytest.mark.parametrize("kernels", KERNELS)
def test_epsilon_counts(kernels: str) -> None:
    x, weight = np.full((1, 32), 1e-3, np.float32), np.ones(32, np.float32)
    zero = np.zeros_like(x)
    got = run("AddRMSNorm", {"x": x, "residual": zero, "weight": weight}, {"epsilon": 1e-6}, kernels=kernels)["y"]
    np.testing.assert_allclose(got, 1 / np.sqrt(2), rtol=20 * UNIT)
    assert (run("AddRMSNorm", {"x": zero, "residual": zero, "weight": weight}, {}, kernels=kernels)["y"] == 0).all()


def test_rows_are_independent_of_batch_and_threads() -> None:
    rng = np.random.default_rng(2)
    x, residual = rng.standard_normal((2, 50, 577)).astype(np.float32)
    weight = rng.standard_normal(577).astype(np.float32)
    together = run("AddRMSNorm", {"x": x, "residual": residual, "weight": weight}, {})["y"]
    for threads in (1, 2):
        for row in range(0, 50, 7):
            part = {"x": x[row : row + 1], "residual": residual[row : row + 1], "weight": weight}
            np.testing.assert_array_equal(run("AddRMSNorm", part, {}, threads=threads)["y"][0], together[row])


def test_refusals() -> None:
    x, weight = np.zeros((2, 8), np.float32), np.zeros(7, np.float32)
    with pytest.raises(REFUSED, match=r"AddRMSNorm: input weight has shape \[7\], but x has \[2, 8\]"):
        run("AddRMSNorm", {"x": x, "residual": x, "weight": weight}, {})
    with pytest.raises(REFUSED, match=r"AddRMSNorm: input residual has shape \[1, 8\]"):
        run("AddRMSNorm", {"x": x, "residual": x[:1], "weight": x[0]}, {})
    with pytest.raises(REFUSED, match="AddRMSNorm: attribute epsilon"):
        run("AddRMSNorm", {"x": x, "residual": x, "weight": x[0]}, {"epsilon": -1.0})
