"""A step graph and a sample graph as one: onnx reads its nodes, inputs and outputs in their order."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import onnx

from export.sample_graph import sample_graph
from rtcore.executor.joined_graph import joined
from rtcore.executor.sample_arrays import INPUTS, OUTPUTS
from tests.rtcore.handmade import VOCABULARY, step_graph, weights


def test_the_sample_graph_follows_the_step() -> None:
    tensors = weights()
    step = step_graph(tensors, dict.fromkeys(tensors, (0, 4)))
    before = onnx.load_model_from_string(step)
    model = onnx.load_model_from_string(joined(step, sample_graph(VOCABULARY), "logits"))
    assert [node.op_type for node in model.graph.node][-2:] == [before.graph.node[-1].op_type, "Sample"]
    assert model.graph.initializer == before.graph.initializer and model.opset_import == before.opset_import
    added = [value.name for value in model.graph.input][len(before.graph.input) :]
    assert added == list(INPUTS) and "logits" not in added
    assert [value.name for value in model.graph.output][len(before.graph.output) :] == list(OUTPUTS)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than its message"):
        joined(b"", b"\x3a\x7f", "logits")
