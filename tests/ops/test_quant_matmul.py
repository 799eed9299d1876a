"""QuantMatMul against its definition, within the bounds that are derived beside it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.layout import QuantForm
from ops.reference.gated_activation import Activation, activate
from ops.reference.quant_matmul import (
    UNIT,
    dequantise,
    float32_activation_bound,
    int8_activation_bound,
    quant_matmul,
)
from ops.reference.rms_norm import rms_norm
from tests.ops.quant_case import FORMS, QuantCase, random_rows
from tests.ops.runner import KERNELS, REFUSED, Array, run

NAMES = [f"int{form.bits}-{form.group}-{'minima' if form.minima else 'zero'}" for form in FORMS]


def product(case: QuantCase, x: Array, kernels: str = "auto", threads: int = 2, activations: str = "int8") -> Array:
    """x . W^T of the operator alone."""
    inputs = {"x": x, "weights": case.weights}
    return run("QuantMatMul", inputs, case.attributes, kernels=kernels, threads=threads, activations=activations)[
        "y"
    ]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (40, 100), (7, 576), (160, 257), (32, 1)])
@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_products_are_within_the_int8_bound(form: QuantForm, rows: int, columns: int, kernels: str) -> None:
    case = QuantCase(form, rows, columns)
    weights = case.weights
    x = random_rows(70, columns)
    want = quant_matmul(x, weights, form, rows)
    bound = int8_activation_bound(x, weights, form, rows)
    for count in (1, 2, 3, 7, 16, 70):
        got = product(case, x[:count], kernels)
        assert got.shape == (count, rows)
        assert (np.abs(got - want[:count]) <= bound[:count]).all()


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_the_bound_would_notice_one_wrong_code(form: QuantForm) -> None:
    """Where activations lose nothing by rounding, as here, a code off by one leaves what arithmetic may do."""
    x = np.random.default_rng(0).integers(-127, 128, (4, 128)).astype(np.float32)
    x[:, :: form.group] = 127
    case = QuantCase(form, 16, 128)
    weights = case.weights
    # Two roundings a group at most, where a product in float32 has one a column: 16 + 8 of its 128 + 8.
    limit = float32_activation_bound(x, weights, form, 16) * 24 / 136
    got = product(case, x)
    assert (np.abs(got - quant_matmul(x, weights, form, 16)) <= limit).all()
    wrong = weights.copy()
    wrong[0, 0, 0:64:4] ^= 1
    assert (np.abs(quant_matmul(x, wrong, form, 16) - got) > limit).any(axis=0).sum() > 8


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_exact_products_differ_by_float32_rounding_alone(form: QuantForm, kernels: str) -> None:
    case = QuantCase(form, 40, 300)
    x = random_rows(11, 300)
    want = quant_matmul(x, case.weights, form, 40)
    got = product(case, x, kernels, activations="float32")
    assert (np.abs(got - want) <= float32_activation_bound(x, case.weights, form, 40)).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_rows_bits_depend_on_nothing_else(form: QuantForm, kernels: str) -> None:
    case = QuantCase(form, 200, 320)
    x = random_rows(130, 320)
    whole = product(case, x, kernels)
    for threads in (1, 2):
        for first, last in ((0, 1), (1, 3), (3, 7), (7, 15), (15, 31), (31, 130)):
            assert np.array_equal(product(case, x[first:last], kernels, threads), whole[first:last])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_bias_and_residual_are_added_last(kernels: str, activations: str) -> None:
    case = QuantCase(FORMS[0], 40, 64)
    rng = np.random.default_rng(4)
    x = random_rows(19, 64)
    bias = rng.standard_normal(40).astype(np.float32)
    residual = rng.standard_normal((19, 40)).astype(np.float32)
    plain = product(case, x, kernels, activations=activations)
    inputs = {"x": x, "weights": case.weights, "bias": bias, "residual": residual}
    got = run("QuantMatMul", inputs, case.attributes, kernels=kernels, activations=activations)["y"]
    assert np.array_equal(got, (plain + bias) + residual)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation_is_that_of_the_operator(activation: Activation, kernels: str) -> None:
    """Fused or by itself, with bias: the same bits."""
    case = QuantCase(FORMS[1], 96, 64)
    rng = np.random.default_rng(5)
    x, bias = random_rows(10, 64), rng.standard_normal(96).astype(np.float32)
    residual = rng.standard_normal((10, 48)).astype(np.float32)
    attributes = {**case.attributes, "activation": activation}
    inputs = {"x": x, "weights": case.weights, "bias": bias, "residual": residual}
    got = run("QuantMatMul", inputs, attributes, kernels=kernels)["y"]
    both = run("QuantMatMul", {"x": x, "weights": case.weights, "bias": bias}, case.attributes, kernels=kernels)[
        "y"
    ]
    alone = run("GatedActivation", {"x": both}, {"activation": activation}, kernels=kernels)["y"]
    assert np.array_equal(got, alone + residual)
    want = quant_matmul(x, case.weights, case.form, 96, bias=bias, residual=residual, activation=activation)
    gate, up = np.split(both.astype(np.float64), 2, axis=1)
    error = np.split(int8_activation_bound(x, case.weights, case.form, 96) + 4 * UNIT * np.abs(both), 2, axis=1)
    # No slope of the three exceeds 1.13.
    limit = 1.13 * error[0] * (np.abs(up) + error[1]) + (np.abs(activate(gate, activation)) + 1e-5) * error[1]
    assert (np.abs(got - want) <= limit + 1e-5 * (np.abs(want) + 1)).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_the_norm_comes_before_rounding(kernels: str, activations: str) -> None:
    case = QuantCase(FORMS[5], 33, 200)
    x = random_rows(9, 200) * np.float32(3)
    norm = np.random.default_rng(6).uniform(0.5, 2, 200).astype(np.float32)
    attributes = {**case.attributes, "norm_epsilon": 1e-5}
    inputs = {"x": x, "weights": case.weights, "norm": norm}
    got = run("QuantMatMul", inputs, attributes, kernels=kernels, activations=activations)["y"]
    normal = rms_norm(x.astype(np.float64), norm.astype(np.float64), 1e-5)
    want = quant_matmul(x, case.weights, case.form, 33, norm=norm, norm_epsilon=1e-5)
    bound = int8_activation_bound if activations == "int8" else float32_activation_bound
    # The norm's own rounding: a sum of K squares, a root, a division, two products.
    slack = (200 + 8) * UNIT * (np.abs(normal) @ np.abs(dequantise(case.weights, case.form, 33, 200)).T)
    assert (np.abs(got - want) <= bound(normal, case.weights, case.form, 33) + slack).all()


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_without_numbers_stay_so_and_touch_no_other(kernels: str) -> None:
    case = QuantCase(FORMS[1], 48, 96)
    x = random_rows(6, 96)
    clean = product(case, x, kernels)
    x[1, 40], x[4, 3] = np.nan, np.inf
    got = product(case, x, kernels)
    assert np.isnan(got[[1, 4]]).all()
    assert np.array_equal(got[[0, 2, 3, 5]], clean[[0, 2, 3, 5]])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[6]], ids=["int4", "int8"])
def test_rows_of_tiny_numbers_are_zero(form: QuantForm, kernels: str) -> None:
    case = QuantCase(form, 16, 64)
    x = np.full((2, 64), 1e-38, np.float32)
    x[1] = 0
    assert not product(case, x, kernels).any()


@pytest.mark.parametrize("kernels", KERNELS)
def test_no_rows_give_no_rows(kernels: str) -> None:
    assert product(QuantCase(FORMS[0], 16, 32), np.empty((0, 32), np.float32), kernels).shape == (0, 16)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"bits": 5}, "Choose 4 or 8"),
        ({"group": 48}, "Choose 32, 64 or 128"),
        ({"group": 16}, "16 goes with codes of 8 bits only"),
        ({"minima": 2}, "Give 0 or 1"),
        ({"scales": "bfloat16"}, "Choose float16 or float32"),
        ({"layout": "plain"}, "do not read"),
        ({"rows": 0}, "positive size"),
        ({"rows": 56}, "weights has shape"),
        ({"columns": 97}, "x has shape"),
        ({"activation": "relu"}, "Choose silu"),
        ({"activation": "silu"}, "multiple of 16 rows"),
        ({"norm_epsilon": -1.0}, "not negative"),
    ],
)
def test_wrong_attributes_are_refused(changed: dict[str, int | str], says: str) -> None:
    case = QuantCase(FORMS[0], 40, 96)
    inputs = {"x": random_rows(2, 96), "weights": case.weights}
    with pytest.raises(REFUSED, match=says):
        run("QuantMatMul", inputs, case.attributes | changed)


@pytest.mark.parametrize(
    ("name", "shape"), [("norm", (95,)), ("bias", (41,)), ("residual", (2, 41)), ("weights", (3, 3, 287))]
)
def test_inputs_of_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    case = QuantCase(FORMS[0], 40, 96)
    inputs = {"x": random_rows(2, 96), "weights": case.weights}
    inputs[name] = np.zeros(shape, np.uint8 if name == "weights" else np.float32)
    with pytest.raises(REFUSED, match=f"input {name} has shape"):
        run("QuantMatMul", inputs, case.attributes)


def test_activations_of_another_type_are_refused() -> None:
    with pytest.raises(REFUSED, match="Choose int8 or float32"):
        product(QuantCase(FORMS[0], 16, 32), random_rows(1, 32), activations="int16")
