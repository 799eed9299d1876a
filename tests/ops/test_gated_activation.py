"""GatedActivation against its definition, to the stated error of exp, tanh and erf."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.reference.gated_activation import Activation, gated_activation
from tests.ops.runner import KERNELS, REFUSED, run

UNIT = 2.0**-24
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh")

# Of |x|. silu: exp's 2^-23, the reciprocal's 2^-23 and four roundings. gelu: erf's absolute 2^-22, halved, and the
# rounding of its argument, whose effect x * erf'(x) / 2 stays below a unit. gelu_tanh: tanh's 2^-22 of 1, halved,
# and four roundings of its argument, each with an effect of y * tanh'(y) / 2 < a quarter unit.
ERRORS = {"silu": 8 * UNIT, "gelu": 5 * UNIT, "gelu_tanh": 8 * UNIT}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values(activation: Activation, kernels: str) -> None:
    rng = np.random.default_rng(0)
    dense = np.linspace(-30, 30, 40001)
    gate = np.concatenate(
        [dense, rng.standard_normal(40000), [0.0, -0.0, 1e-30, -1e-30, 300.0, -300.0, 3e38, -3e38]]
    )
    x = np.stack([gate, np.ones_like(gate)]).astype(np.float32).reshape(1, -1)
    got = run("GatedActivation", {"x": x}, {"activation": activation}, kernels=kernels)["y"]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        want = gated_activation(wide, activation)
    # Below 2^-126 results may be flushed to zero.
    limit = ERRORS[activation] * np.abs(wide[:, : len(gate)]) + 2.0**-126
    assert (np.abs(got - want) <= limit).all(), np.max(np.abs(got - want) / limit)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan_and_infinity_does_not_spread(activation: Activation, kernels: str) -> None:
    x = np.zeros((1, 40), dtype=np.float32)
    x[0, 3], x[0, 18], x[0, 20:] = np.nan, np.inf, 1.0
    got = run("GatedActivation", {"x": x}, {"activation": activation}, kernels=kernels)["y"][0]
    assert np.isnan(got[3]) and got[18] == np.inf
    assert (np.delete(got, [3, 18]) == 0).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", [(0, 6), (1, 2), (1, 14), (5, 34), (3, 9000), (700, 24)])
def test_shapes_and_bits(shape: tuple[int, ...], kernels: str) -> None:
    """Every value has the bits that it has alone, wherever in a row it lies and whichever thread computes it."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    got = run("GatedActivation", {"x": x}, {}, kernels=kernels)["y"]
    assert got.shape == (shape[0], shape[1] // 2)
    single = run("GatedActivation", {"x": x}, {}, kernels=kernels, threads=1)["y"]
    np.testing.assert_array_equal(got, single)
    gate, up = np.split(x, 2, axis=1)
    pairs = np.stack([gate.reshape(-1), up.reshape(-1)], axis=1)[:500]
    alone = run("GatedActivation", {"x": pairs}, {}, kernels=kernels)["y"]
    np.testing.assert_array_equal(got.reshape(-1)[:500], alone.reshape(-1))


def test_refusals() -> None:
    with pytest.raises(REFUSED, match=r"GatedActivation: input x has shape \[2, 7\]"):
        run("GatedActivation", {"x": np.zeros((2, 7), np.float32)}, {})
    with pytest.raises(REFUSED, match="attribute activation is 'relu'"):
        run("GatedActivation", {"x": np.zeros((2, 8), np.float32)}, {"activation": "relu"})
