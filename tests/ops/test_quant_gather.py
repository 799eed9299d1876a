"""QuantGather against its definition."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.layout import QuantForm
from ops.reference.quant_matmul import UNIT, quant_gather
from tests.ops.quant_case import FORMS, QuantCase
from tests.ops.runner import KERNELS, REFUSED, run


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_are_dequantised(form: QuantForm, kernels: str) -> None:
    case = QuantCase(form, 75, 200)
    ids = np.array([74, 0, 15, 16, 16, *range(40)], np.int64)
    got = run("QuantGather", {"weights": case.weights, "ids": ids}, case.attributes, kernels=kernels)["y"]
    want = quant_gather(case.weights, ids, form, 75, 200)
    assert got.shape == want.shape
    # A product of a code with a scale and, with minima, a sum: each is rounded once.
    assert (np.abs(got - want) <= 2 * UNIT * (np.abs(want) + 2.0**form.bits * 0.02)).all()


def test_without_minima_scales_in_float16_make_it_exact() -> None:
    case = QuantCase(FORMS[0], 32, 64)
    ids = np.arange(32, dtype=np.int64)
    got = run("QuantGather", {"weights": case.weights, "ids": ids}, case.attributes)["y"]
    assert np.array_equal(got, quant_gather(case.weights, ids, case.form, 32, 64))


def test_no_ids_give_no_rows() -> None:
    case = QuantCase(FORMS[0], 32, 64)
    inputs = {"weights": case.weights, "ids": np.empty(0, np.int64)}
    assert run("QuantGather", inputs, case.attributes)["y"].shape == (0, 64)


@pytest.mark.parametrize("wrong", [-1, 75])
def test_ids_outside_the_rows_are_refused(wrong: int) -> None:
    case = QuantCase(FORMS[0], 75, 64)
    with pytest.raises(REFUSED, match=f"ids\\[1\\] is {wrong}, but there are 75 rows"):
        run("QuantGather", {"weights": case.weights, "ids": np.array([3, wrong], np.int64)}, case.attributes)
