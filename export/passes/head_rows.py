"""Selects the rows that go through the head by one Gather, and gives logits without a batch axis."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_node, constant, dims, only_use, producer, replace, squeezed, unsqueezed


class SelectHeadRows(Pass):
    """Transpose, GatherND over logit_rows, Transpose -> Gather; logits [1, S, V] -> [S, V]."""

    def run(self, captured: CapturedModel) -> int:
        count = 0
        for node in list(captured.graph):
            if node.op_type == "GatherND":
                count += self._select(captured, node)
            elif node.op_type == "Gather" and constant(node.inputs[1]) == 0 and node.outputs[0].is_graph_output():
                source = node.inputs[0]
                if source is not None and (dims(source) or ())[:1] == (1,):
                    replace(node.outputs[0], squeezed(captured, node, source))
                    count += 1
        return count

    @staticmethod
    def _select(captured: CapturedModel, node: ir.Node) -> int:
        turned, rows = node.inputs
        before, index = producer(turned, "Transpose"), producer(rows, "Unsqueeze")
        after = only_use(node.outputs[0])
        if before is None or index is None or after is None or after.op_type != "Transpose":
            return 0
        if any(tuple(turn.attributes["perm"].as_ints()) != (1, 0, 2) for turn in (before, after)):
            return 0
        hidden = squeezed(captured, after, before.inputs[0])
        shape = dims(after.outputs[0]) or ()
        (chosen,) = add_node(captured, after, "Gather", [hidden, index.inputs[0]], [shape[1:]], {"axis": 0})
        replace(after.outputs[0], unsqueezed(captured, after, chosen))
        return 1
