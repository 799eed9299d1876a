"""Removes what does nothing: reshapes to the same shape, identities, nodes and weights that nobody reads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.capture.captured import CapturedModel
from export.passes.base import Pass, constant, dims, producer, replace


class Tidy(Pass):
    """Run between other passes; they may leave dead nodes behind."""

    def run(self, captured: CapturedModel) -> int:
        count = 0
        for node in list(captured.graph):
            source = _same(node)
            if source is not None and not (node.outputs[0].is_graph_output() and source.is_graph_input()):
                replace(node.outputs[0], source)
                count += 1
        RemoveUnusedNodesPass()(captured.model)
        captured.drop_unused_weights()
        return count


def _same(node: ir.Node) -> ir.Value | None:
    """What a node's output equals, if the node changes nothing."""
    if node.domain:
        return None
    if node.op_type == "Identity":
        return node.inputs[0]
    if node.op_type == "Reshape" and dims(node.inputs[0]) is not None:
        return node.inputs[0] if dims(node.inputs[0]) == dims(node.outputs[0]) else None
    if node.op_type == "Squeeze":
        inner = producer(node.inputs[0], "Unsqueeze")
        if inner is not None and constant(inner.inputs[1]) == constant(node.inputs[1]) == [0]:
            return inner.inputs[0]
    return None
