"""Norms that a GPU's quantised products do on the way: where the graph has them, and where it keeps the norm."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")

import onnx_ir as ir

from export.lowering import LoweredModel, lower
from export.recipe import recipe_for
from tests.export.cases import case

pytestmark = pytest.mark.export

ADDED = "QuantMatMulAddRMSNorm"


def lowered(name: str, precision: str, group: int = 64) -> LoweredModel:
    chosen = case(name)
    recipe = recipe_for(precision).for_target("cuda")
    assert recipe is not None
    if recipe.bits is not None:
        recipe = replace(recipe, group=group)
    return lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")


def count(model: LoweredModel) -> Counter[str]:
    return Counter(node.op_type for node in model.step.graph)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_llama_keeps_its_first_and_its_last_norm_alone(precision: str) -> None:
    """Of a layer's seven kernels five are left: q | k | v, attention, output, gate | up, down."""
    model = lowered("llama", precision)
    layers = len(case("llama").captured.caches)
    found = count(model)
    assert (found["RMSNorm"], found["AddRMSNorm"]) == (1, 1)
    assert found[ADDED] == 2 * layers - 1
    assert found["QuantMatMul"] == 2 * layers + 1, "the last down is before a norm of its own"
    for node in model.step.graph:
        if node.op_type != ADDED:
            continue
        y, total, squares = node.outputs
        assert squares.dtype == ir.DataType.FLOAT
        assert y.dtype == total.dtype == ir.DataType.FLOAT16
        (reader,) = y.uses()
        assert reader.idx == 0 and reader.node.inputs[5] is squares
        assert [use.node for use in squares.uses()] == [reader.node]
        assert {use.node.op_type for use in total.uses()} <= {ADDED, "AddRMSNorm"}


@pytest.mark.parametrize(
    ("name", "precision", "group"),
    [
        ("llama", "bf16", 64),
        ("llama", "int4", 32),
        ("gemma2", "int8", 64),
        ("mixtral", "int8", 64),
    ],
)
def test_other_norms_stay(name: str, precision: str, group: int) -> None:
    """Products in 16 bits or narrow groups; sandwich norms, which have no residual before them; experts and their
    router, which are no products that scale."""
    model = lowered(name, precision, group)
    assert not count(model)[ADDED]
    assert not any(str(value.name).endswith(".unit") for value in model.step.graph.initializers.values())


def test_the_unit_takes_the_largest_gain_below_one() -> None:
    model = lowered("llama", "int8")
    units = 0
    for node in model.step.graph:
        if node.op_type == ADDED:
            gain, unit = node.inputs[3:5]
            assert gain is not None and unit is not None and unit.dtype == ir.DataType.FLOAT
            (factor,) = model.tensors[str(unit.name)].chunks()
            (gains,) = model.tensors[str(gain.name)].chunks()
            assert factor.shape == (1,) and np.frexp(factor[0])[0] == 0.5
            assert 0.5 <= np.abs(gains).max() * factor[0] <= 1
            units += 1
    assert units == count(model)[ADDED] > 0


def test_a_bias_comes_along() -> None:
    """Where a family's output projection has one."""
    model = lowered("llama_biases_wide_heads_llama3_rope", "int8")
    biased = [node.inputs[5] for node in model.step.graph if node.op_type == ADDED and len(node.inputs) > 5]
    assert any(bias is not None and str(bias.name).endswith("o_proj.bias") for bias in biased)
