"""GPT-NeoX keeps q, k, v of each head side by side: rows are moved so that all q come first, then k, then v."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import (
    Pass,
    add_node,
    add_ortolan,
    constant,
    dims,
    integers,
    only_use,
    producer,
    replace,
)
from export.sources import Regrouped
from ops.schema import DOMAIN


class UnpackHeads(Pass):
    """Linear, Reshape [1, T, heads, 3 D], Transpose, Split in three -> Linear with moved rows, Split, and for
    each part Reshape [1, T, heads, D], Transpose."""

    def run(self, captured: CapturedModel) -> int:
        return sum(self._unpack(captured, node) for node in list(captured.graph) if node.op_type == "Split")

    @staticmethod
    def _unpack(captured: CapturedModel, split: ir.Node) -> int:
        turn = producer(split.inputs[0], "Transpose")
        view = producer(turn.inputs[0], "Reshape") if turn else None
        linear = producer(view.inputs[0], "Linear", DOMAIN) if view else None
        if turn is None or view is None or linear is None or only_use(linear.outputs[0]) is None:
            return 0
        shape, pieces = dims(view.outputs[0]), [dims(output) for output in split.outputs]
        weight = captured.weight_of(linear.inputs[1])
        if shape is None or len(shape) != 4 or weight is None or len(set(pieces)) != 1 or len(pieces) != 3:
            return 0
        heads, width = shape[2], shape[3]
        axis = split.attributes["axis"].as_int() if "axis" in split.attributes else 0
        target = constant(view.inputs[1])
        if axis not in (3, -1) or not isinstance(heads, int) or not isinstance(width, int) or target is None:
            return 0
        head_dim = width // 3
        moved = []
        for value in linear.inputs[1:]:
            source = captured.weight_of(value)
            if value is None or source is None:
                return 0
            name = str(value.name)
            captured.add_weight(f"{name}.by_kind", Regrouped(source, 1, heads, 3, head_dim))
            moved.append(captured.graph.initializers[f"{name}.by_kind"])
        lead = shape[:2]
        (packed,) = add_ortolan(captured, linear, "Linear", [linear.inputs[0], *moved], [(*lead, heads * width)])
        size = heads * head_dim
        parts = add_node(
            captured,
            linear,
            "Split",
            [packed, integers(captured, [size] * 3)],
            [(*lead, size)] * 3,
            {"axis": 2},
        )
        for part, output in zip(parts, split.outputs, strict=True):
            new_shape = integers(captured, [1, -1, heads, head_dim])
            (seen,) = add_node(captured, split, "Reshape", [part, new_shape], [(*lead, heads, head_dim)])
            (turned,) = add_node(
                captured, split, "Transpose", [seen], [(1, heads, lead[1], head_dim)], {"perm": [0, 2, 1, 3]}
            )
            replace(output, turned)
        return 1
