"""Slices that cut the last axis into consecutive pieces become one Split (Phi-3's packed q, k, v)."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_node, constant, dims, integers, replace


class SplitSlices(Pass):
    """Only where the pieces, in order, cover the whole axis and nothing else reads the value."""

    def run(self, captured: CapturedModel) -> int:
        count = 0
        for node in list(captured.graph):
            for value in node.outputs:
                pieces = [use.node for use in value.uses() if use.node.op_type == "Slice"]
                if len(pieces) > 1 and len(pieces) == len(value.uses()):
                    count += self._split(captured, value, pieces)
        return count

    @staticmethod
    def _split(captured: CapturedModel, value: ir.Value, pieces: list[ir.Node]) -> int:
        shape = dims(value)
        if shape is None or not isinstance(shape[-1], int):
            return 0
        bounds = []
        for piece in pieces:
            start, stop, axis, step = (constant(operand) for operand in piece.inputs[1:5])
            if axis not in ([len(shape) - 1], [-1]) or step != [1] or start is None or stop is None:
                return 0
            bounds.append((start[0], min(stop[0], shape[-1]), piece))
        bounds.sort(key=lambda bound: bound[0])
        edges = [0, *(stop for _, stop, _ in bounds)]
        if edges[:-1] != [start for start, _, _ in bounds] or edges[-1] != shape[-1]:
            return 0
        sizes = [stop - start for start, stop, _ in bounds]
        first = next(node for node in captured.graph if node in pieces)
        outputs = add_node(
            captured,
            first,
            "Split",
            [value, integers(captured, sizes)],
            [(*shape[:-1], size) for size in sizes],
            {"axis": len(shape) - 1},
        )
        for output, (_, _, piece) in zip(outputs, bounds, strict=True):
            replace(piece.outputs[0], output)
        return 1
