"""Experts against its definition, within the bounds that are derived beside it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.layout import QuantForm
from ops.reference.experts import experts, route
from ops.reference.gated_activation import Activation
from tests.ops.expert_case import ExpertCase
from tests.ops.quant_case import random_rows
from tests.ops.runner import KERNELS, REFUSED, Array, run

INT4, INT8 = QuantForm(4, 32, minima=True), QuantForm(8, 32)
WIDE, FINE = QuantForm(4, 128, scales="float32"), QuantForm(8, 16, scales="float32")
PLAIN = ExpertCase(8, 2, 48, 40)
CASES = {
    "plain": PLAIN,
    "plain, odd sizes, all experts": ExpertCase(3, 3, 13, 21, activation="gelu"),
    "int4": ExpertCase(16, 4, 96, 64, INT4, INT4, normalise=True),
    "int8": ExpertCase(5, 1, 64, 32, INT8, INT8, scale=2.5),
    "int4 and int8, columns that fill no group": ExpertCase(6, 2, 80, 48, WIDE, FINE, activation="gelu_tanh"),
    "plain down": ExpertCase(4, 2, 64, 48, INT4, None, normalise=True),
    "plain gate and up": ExpertCase(4, 2, 48, 64, None, INT8),
}


def meaning(case: ExpertCase, x: Array, logits: Array) -> Array:
    return experts(
        x, logits, case.gate_up.values, case.down.values, case.top_k,
        normalise=case.normalise, scale=case.scale, activation=case.activation,
    )  # fmt: skip


def test_the_reference_is_a_sum_over_the_chosen_experts() -> None:
    """Written out for one row, both ways of weighing."""
    case = ExpertCase(4, 2, 8, 8)
    x, logits = random_rows(1, 8), np.array([[0.0, 2.0, 1.0, 2.0]], np.float32)
    given = {}
    for expert in (1, 3):
        gate, up = np.split(case.gate_up.values[expert] @ x[0], 2)
        given[expert] = case.down.values[expert] @ (gate / (1 + np.exp(-gate)) * up)
    share = np.exp(2.0) / (1 + np.e + 2 * np.exp(2.0))
    assert np.allclose(meaning(case, x, logits)[0], share * (given[1] + given[3]))
    even = dataclasses.replace(case, normalise=True, scale=3.0)
    assert np.allclose(meaning(even, x, logits)[0], 1.5 * (given[1] + given[3]))


def test_of_equal_logits_the_first_experts_are_chosen() -> None:
    chosen, weights = route(np.zeros((1, 5), np.float32), 2, normalise=True)
    assert chosen.tolist() == [[0, 1]] and weights.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_values_are_within_the_bound(name: str, kernels: str) -> None:
    case = CASES[name]
    x, logits = random_rows(150, case.hidden), case.logits(150)
    want, bound = meaning(case, x, logits), case.bound(x, logits)
    for count in (1, 2, 9, 150):
        got = case.run(x[:count], logits[:count], kernels)
        assert got.shape == (count, case.hidden)
        assert (np.abs(got - want[:count]) <= bound[:count]).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_exact_products_differ_by_float32_rounding_alone(name: str, kernels: str) -> None:
    case = CASES[name]
    x, logits = random_rows(20, case.hidden), case.logits(20)
    got = case.run(x, logits, kernels, activations="float32")
    assert (np.abs(got - meaning(case, x, logits)) <= case.bound(x, logits, exact=True)).all()


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({"normalise": True}, 150),
        ({"scale": 1.01}, 150),
        ({"top_k": 1}, 150),
        ({"activation": "gelu"}, 150),
    ],
)
def test_the_bound_would_notice_another_attribute(changed: dict[str, object], count: int) -> None:
    x, logits = random_rows(count, PLAIN.hidden), PLAIN.logits(count)
    other = dataclasses.replace(PLAIN, **changed)  # type: ignore[arg-type]
    off = np.abs(PLAIN.run(x, logits) - meaning(other, x, logits)) > PLAIN.bound(x, logits)
    assert off.any(axis=1).mean() > 0.9


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_a_rows_bits_depend_on_nothing_else(name: str, activations: str, kernels: str) -> None:
    """Alone, in small batches, among hundreds (where codes are expanded), on one thread or two."""
    case = CASES[name]
    x, logits = random_rows(300, case.hidden), case.logits(300)
    whole = case.run(x, logits, kernels, activations=activations)
    for threads in (1, 2):
        for first, last in ((0, 1), (1, 3), (3, 7), (7, 40), (40, 300)):
            part = case.run(x[first:last], logits[first:last], kernels, threads, activations)
            assert np.array_equal(part, whole[first:last])


def test_rows_beyond_one_block_of_memory_have_the_same_bits() -> None:
    """16 M numbers: 2048 rows of 8 experts of 2048 columns would be more."""
    case = ExpertCase(8, 8, 16, 32768)
    x, logits = random_rows(130, 16), case.logits(130)
    assert np.array_equal(case.run(x, logits)[100:], case.run(x[100:], logits[100:]))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_an_experts_product_is_that_of_quant_matmul(activation: Activation) -> None:
    """One expert that all rows go to: the bits of two QuantMatMuls."""
    case = ExpertCase(3, 1, 96, 64, INT4, INT8, normalise=True, activation=activation)
    x = random_rows(40, 96)
    logits = np.tile(np.array([0, 0, 9], np.float32), (40, 1))
    tiles = case.gate_up.stored.shape[0] // 3, case.down.stored.shape[0] // 3

    def attributes(prefix: str) -> dict[str, int | str]:
        own = case.gate_up if prefix == "gate_up" else case.down
        given = {name.removeprefix(f"{prefix}_"): value for name, value in own.attributes(prefix).items()}
        return given | {"rows": own.rows}

    inner = run(
        "QuantMatMul",
        {"x": x, "weights": case.gate_up.stored[-tiles[0] :]},
        attributes("gate_up") | {"activation": activation},
    )["y"]
    want = run("QuantMatMul", {"x": inner, "weights": case.down.stored[-tiles[1] :]}, attributes("down"))["y"]
    assert np.array_equal(case.run(x, logits), want)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["plain", "int4"])
def test_rows_without_numbers_stay_so_and_touch_no_other(name: str, kernels: str) -> None:
    case = CASES[name]
    x, logits = random_rows(8, case.hidden), case.logits(8)
    clean = case.run(x, logits, kernels)
    x[1, 4] = np.nan
    logits[4, 0], logits[5, 2] = np.nan, np.inf
    got = case.run(x, logits, kernels)
    assert np.isnan(got[[1, 4, 5]]).all()
    assert np.array_equal(got[[0, 2, 3, 6, 7]], clean[[0, 2, 3, 6, 7]])


@pytest.mark.parametrize("name", CASES)
def test_weights_of_experts_without_rows_are_not_read(name: str) -> None:
    """NaN in the last expert's weights (its codes have no scale) touches rows only that go to it."""
    case = CASES[name]
    if case.top_k == case.experts:
        pytest.skip("every expert has rows")
    x, logits = random_rows(30, case.hidden)[1:], case.logits(30)[1:]
    clean = case.run(x, logits)
    spoilt = ExpertCase(**{field.name: getattr(case, field.name) for field in dataclasses.fields(case)})
    for weight in (spoilt.gate_up, spoilt.down):
        weight.__dict__["stored"] = weight.stored.copy()
        weight.stored[-(len(weight.stored) // case.experts) :] = np.nan if weight.form is None else 255
    assert np.array_equal(spoilt.run(x, logits), clean)
    logits[:, -1] = 20.0
    assert not np.isfinite(spoilt.run(x, logits)).any()


def test_no_rows_give_no_rows() -> None:
    empty = np.empty((0, PLAIN.hidden), np.float32)
    assert PLAIN.run(empty, np.empty((0, PLAIN.experts), np.float32)).shape == (0, PLAIN.hidden)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"experts": 0}, "Give 1 to"),
        ({"experts": 7}, "gate_up_rows gives each expert|Give as many for each of the 7"),
        ({"top_k": 0}, "Give 1 to 16, the number of experts"),
        ({"top_k": 17}, "Give 1 to 16, the number of experts"),
        ({"normalise": 2}, "Give 0 or 1"),
        ({"activation": "relu"}, "Choose silu"),
        ({"gate_up_bits": 5}, "gate_up_bits is 5. Choose 4 or 8"),
        ({"down_group": 48}, "down_group is 48. Choose 32, 64 or 128"),
        ({"down_layout": "plain"}, "do not read"),
        ({"gate_up_rows": 16 * 48}, "gate_up_rows gives each expert 48"),
        ({"down_rows": 16 * 90}, "a multiple of 16 rows"),
        ({"down_columns": 65}, "Give 96 x 64, the way back"),
        ({"gate_up_columns": 0}, "positive size"),
    ],
)
def test_wrong_attributes_are_refused(changed: dict[str, int | str], says: str) -> None:
    case = CASES["int4"]
    inputs = {
        "x": random_rows(2, 96), "logits": case.logits(2),
        "gate_up_weights": case.gate_up.stored, "down_weights": case.down.stored,
    }  # fmt: skip
    with pytest.raises(REFUSED, match=says):
        run("Experts", inputs, case.attributes | changed)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("x", (2, 95)),
        ("logits", (2, 15)),
        ("logits", (3, 16)),
        ("gate_up_weights", (3, 3, 5)),
        ("down_weights", (1, 2, 3)),
    ],
)
def test_inputs_of_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    case = CASES["int4"]
    inputs = {
        "x": random_rows(2, 96), "logits": case.logits(2),
        "gate_up_weights": case.gate_up.stored, "down_weights": case.down.stored,
    }  # fmt: skip
    inputs[name] = np.zeros(shape, inputs[name].dtype)
    with pytest.raises(REFUSED, match=f"input {name} has shape"):
        run("Experts", inputs, case.attributes)


def test_plain_weights_of_another_shape_are_refused() -> None:
    inputs = {
        "x": random_rows(2, 48), "logits": PLAIN.logits(2),
        "gate_up_weights": PLAIN.gate_up.stored[:-1], "down_weights": PLAIN.down.stored,
    }  # fmt: skip
    with pytest.raises(REFUSED, match="input gate_up_weights has shape"):
        run("Experts", inputs, PLAIN.attributes)
