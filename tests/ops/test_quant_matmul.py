"""The definition of QuantMatMul against ONNX Runtime's MatMulNBits, and the bound on int8 activations."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("onnx")

from onnx import helper

from ops.reference.gated_activation import gated_activation
from ops.reference.quant_matmul import (
    dequantise,
    dequantise_nbits,
    int8_activation_bound,
    quant_matmul,
    unpack,
)
from tests.ops.runner import ELEMENT_TYPES, Array

Bits = Literal[4, 8]


def nbits(x: Array, inputs: dict[str, Array], *, bits: Bits, group: int, columns: int, level: int) -> Array:
    """com.microsoft.MatMulNBits of x with the weights in `inputs` (B, scales, zero_points where given)."""
    rows = len(inputs["B"])
    node = helper.make_node(
        "MatMulNBits", ["x", *inputs], ["y"], domain="com.microsoft",
        K=columns, N=rows, bits=bits, block_size=group, accuracy_level=level,
    )  # fmt: skip
    types = ELEMENT_TYPES | {"uint8": 2}
    weights = [
        helper.make_tensor(name, types[array.dtype.name], array.shape, array.tobytes(), raw=True)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", 1, ["T", columns])],
        [helper.make_tensor_value_info("y", 1, ["T", rows])],
        weights,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"x": x})[0]
    return result


def problem(bits: Bits, group: int, columns: int, zeros: bool) -> tuple[Array, dict[str, Array]]:
    """Activations with an outlier, and random weights of 40 rows."""
    rng = np.random.default_rng(columns + bits)
    rows, groups = 40, -(-columns // group)
    x = rng.standard_normal((5, columns)).astype(np.float32)
    x[1, 3] = 50.0
    inputs = {
        "B": rng.integers(0, 256, (rows, groups, group * bits // 8), dtype=np.uint8),
        "scales": rng.uniform(-0.02, 0.02, (rows, groups)).astype(np.float32),
    }
    if zeros:
        inputs["zero_points"] = rng.integers(0, 256, (rows, -(-groups * bits // 8)), dtype=np.uint8)
    return x, inputs


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("group", "columns"), [(32, 96), (32, 100), (64, 576), (128, 384)])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_is_within_the_int8_bound(bits: Bits, group: int, columns: int, zeros: bool) -> None:
    x, inputs = problem(bits, group, columns, zeros)
    weights = dequantise_nbits(inputs["B"], inputs["scales"], inputs.get("zero_points"), bits=bits, columns=columns)
    want = x.astype(np.float64) @ weights.T
    got = nbits(x, inputs, bits=bits, group=group, columns=columns, level=4)
    bound = int8_activation_bound(x, weights, inputs["scales"], bits=bits, group=group)
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)
    # The bound would notice one wrong code zero, or one group with another's scale.
    wrong = dequantise_nbits(inputs["B"] ^ np.uint8(0x80), inputs["scales"], None, bits=bits, columns=columns)
    assert (np.abs(x @ wrong.T - got) > bound).any()


@pytest.mark.parametrize("group", [32, 64])
def test_matmul_nbits_in_float32_confirms_the_layout(group: int) -> None:
    """Without rounded activations only float32 arithmetic is between the kernel and the definition."""
    x, inputs = problem(4, group, 192, True)
    weights = dequantise_nbits(inputs["B"], inputs["scales"], inputs["zero_points"], bits=4, columns=192)
    got = nbits(x, inputs, bits=4, group=group, columns=192, level=1)
    limit = (192 + 8) * 2.0**-24 * (np.abs(x) @ np.abs(weights).T)
    assert (np.abs(got - x.astype(np.float64) @ weights.T) <= limit).all()


def test_float_zero_points_equal_minima() -> None:
    _, inputs = problem(4, 32, 64, False)
    rng = np.random.default_rng(3)
    zeros = rng.uniform(0, 15, inputs["scales"].shape)
    scales = inputs["scales"].astype(np.float64)
    by_zero = dequantise_nbits(inputs["B"], scales, zeros, bits=4, columns=64)
    by_minimum = dequantise(inputs["B"], scales, -zeros * scales, bits=4, columns=64)
    np.testing.assert_allclose(by_zero, by_minimum, rtol=1e-12, atol=1e-15)


def test_unpack_takes_even_columns_from_the_low_nibble() -> None:
    np.testing.assert_array_equal(unpack(np.array([[0x21, 0x43]], dtype=np.uint8), 4), [[1, 2, 3, 4]])


def test_epilogues() -> None:
    x, inputs = problem(8, 32, 64, False)
    rng = np.random.default_rng(4)
    bias, residual = rng.standard_normal(40), rng.standard_normal((5, 20))
    plain = quant_matmul(x, inputs["B"], inputs["scales"], bits=8)
    np.testing.assert_allclose(
        quant_matmul(x, inputs["B"], inputs["scales"], None, bias, residual, bits=8, activation="silu"),
        gated_activation(plain + bias, "silu") + residual,
    )
