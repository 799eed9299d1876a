"""Add followed by RMSNorm becomes AddRMSNorm, which gives the sum as well."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_ortolan, dims, producer, replace
from ops.schema import DOMAIN


class FuseAddRMSNorm(Pass):
    """Only where both operands have the norm's full shape."""

    def run(self, captured: CapturedModel) -> int:
        nodes = [node for node in captured.graph if (node.op_type, node.domain) == ("RMSNorm", DOMAIN)]
        return sum(self._fuse(captured, node) for node in nodes)

    @staticmethod
    def _fuse(captured: CapturedModel, norm: ir.Node) -> int:
        add = producer(norm.inputs[0], "Add")
        if add is None or len({dims(value) for value in (*add.inputs, add.outputs[0])}) != 1:
            return 0
        shape = dims(add.outputs[0]) or ()
        if len(shape) != 2:
            return 0
        y, total = add_ortolan(
            captured,
            add,
            "AddRMSNorm",
            [*add.inputs, norm.inputs[1]],
            [shape, shape],
            {"epsilon": norm.attributes["epsilon"].as_float()},
        )
        replace(norm.outputs[0], y)
        replace(add.outputs[0], total)
        return 1
