"""Norms that a GPU's products do on the way: where the graph has them, and where it keeps the norm."""

from __future__ import annotations

from collections import Counter

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

#: Where products have their squares.
SQUARES = {"Linear": 3, "QuantMatMul": 5}


def lowered(name: str, precision: str) -> LoweredModel:
    chosen = case(name)
    recipe = recipe_for(precision).for_target("cuda")
    assert recipe is not None
    return lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")


def count(model: LoweredModel) -> Counter[str]:
    return Counter(node.op_type for node in model.step.graph)


@pytest.mark.parametrize(("precision", "kind"), [("bf16", "Linear"), ("fp16", "Linear"), ("int4", "QuantMatMul")])
def test_a_llama_keeps_its_first_and_its_last_norm_alone(precision: str, kind: str) -> None:
    """Of a layer's seven kernels five are left: q | k | v, attention, output, gate | up, down."""
    model = lowered("llama", precision)
    layers = len(case("llama").captured.caches)
    found = count(model)
    assert (found["RMSNorm"], found["AddRMSNorm"]) == (1, 1)
    assert found[f"{kind}AddRMSNorm"] == 2 * layers - 1
    assert found[kind] == 2 * layers + 1, "the last down is before a norm of its own"
    for node in model.step.graph:
        if node.op_type != f"{kind}AddRMSNorm":
            continue
        y, total, squares = node.outputs
        assert squares.dtype == ir.DataType.FLOAT and y.dtype == total.dtype != squares.dtype
        (reader,) = y.uses()
        assert reader.idx == 0 and reader.node.inputs[SQUARES[kind]] is squares
        assert [use.node for use in squares.uses()] == [reader.node]
        assert {use.node.op_type for use in total.uses()} <= {f"{kind}AddRMSNorm", "AddRMSNorm"}


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "olmo2", "gpt2"])
def test_a_norm_that_others_read_or_that_follows_no_product_stays(name: str) -> None:
    """Experts and their router read a norm; sandwich norms have no residual before them; LayerNorm is another."""
    model = lowered(name, "bf16")
    readers = [
        use.node.op_type
        for node in model.step.graph
        if node.op_type.endswith("AddRMSNorm") and node.op_type != "AddRMSNorm"
        for use in node.outputs[0].uses()
    ]
    assert set(readers) <= set(SQUARES)
    if name in ("gemma2", "olmo2", "gpt2"):
        assert not readers


def test_the_unit_of_float16_takes_the_largest_gain_below_one() -> None:
    model = lowered("llama", "fp16")
    units = 0
    for node in model.step.graph:
        if node.op_type == "LinearAddRMSNorm":
            gain, unit = node.inputs[3], node.inputs[5]
            assert gain is not None and unit is not None and unit.dtype == ir.DataType.FLOAT
            (factor,) = model.tensors[str(unit.name)].chunks()
            (gains,) = model.tensors[str(gain.name)].chunks()
            assert factor.shape == (1,) and np.frexp(factor[0])[0] == 0.5
            assert 0.5 <= np.abs(gains).max() * factor[0] <= 1
            units += 1
    assert units == 2 * len(case("llama").captured.caches) - 1
    assert not any(name.endswith(".unit") for name in lowered("llama", "bf16").tensors)


def test_a_bias_comes_along() -> None:
    """Where a family's output projection has one."""
    model = lowered("llama_biases_wide_heads_llama3_rope", "bf16")
    biased = [node.inputs[4] for node in model.step.graph if node.op_type == "LinearAddRMSNorm"]
    assert any(bias is not None and str(bias.name).endswith("o_proj.bias") for bias in biased)
