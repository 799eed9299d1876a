"""Merges linears that read the same input: q, k, v and gate, up become one Linear and a Split."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_node, add_ortolan, dims, integers, replace
from export.sources import Concat
from export.tensors import RowSource
from ops.schema import DOMAIN


class MergeLinears(Pass):
    """Linears of one input whose weights belong to one module of the model, in the graph's order."""

    def run(self, captured: CapturedModel) -> int:
        groups: dict[tuple[int, str], list[ir.Node]] = defaultdict(list)
        for node in captured.graph:
            if (node.op_type, node.domain) == ("Linear", DOMAIN) and captured.weight_of(node.inputs[1]):
                groups[id(node.inputs[0]), _module(node)].append(node)
        merged = [nodes for nodes in groups.values() if len(nodes) > 1]
        for nodes in merged:
            self._merge(captured, nodes)
        return len(merged)

    @staticmethod
    def _merge(captured: CapturedModel, nodes: list[ir.Node]) -> None:
        names = [str(node.inputs[1].name).removesuffix(".weight").rpartition(".")[2] for node in nodes]
        name = f"{_module(nodes[0])}.{'+'.join(names)}"
        weights = [_weight(captured, node, 1) for node in nodes]
        weight = captured.add_weight(f"{name}.weight", Concat(weights))
        bias = None
        if any(len(node.inputs) > 2 for node in nodes):
            parts = [
                _weight(captured, node, 2) if len(node.inputs) > 2 else _zeros(captured, part.shape[0])
                for node, part in zip(nodes, weights, strict=True)
            ]
            bias = captured.add_weight(f"{name}.bias", Concat(parts))
        lead = (dims(nodes[0].outputs[0]) or ())[:-1]
        sizes = [part.shape[0] for part in weights]
        (result,) = add_ortolan(
            captured, nodes[0], "Linear", [nodes[0].inputs[0], weight, bias], [(*lead, sum(sizes))]
        )
        outputs = add_node(
            captured,
            nodes[0],
            "Split",
            [result, integers(captured, sizes)],
            [(*lead, size) for size in sizes],
            {"axis": len(lead)},
        )
        for node, output in zip(nodes, outputs, strict=True):
            replace(node.outputs[0], output)


def _module(node: ir.Node) -> str:
    """Path of the module that holds a linear: "model.layers.0.self_attn" for its q_proj."""
    return str(node.inputs[1].name).removesuffix(".weight").rpartition(".")[0]


def _weight(captured: CapturedModel, node: ir.Node, index: int) -> RowSource:
    source = captured.weight_of(node.inputs[index])
    if source is None:
        raise ValueError(f"input {index} of {node.name} is no weight")
    return source


def _zeros(captured: CapturedModel, rows: int) -> RowSource:
    value = captured.add_constant(f"zeros.{rows}", np.zeros(rows, np.float32))
    return captured.weights[str(value.name)]
