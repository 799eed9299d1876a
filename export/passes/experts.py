"""A router's choice and the experts that it chooses become Experts."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.capture.schemas import CAPTURE_DOMAIN
from export.passes.base import Pass, add_ortolan, dims, producer, replace


class FuseExperts(Pass):
    """Only where what the router gives goes to the experts as it is."""

    def run(self, captured: CapturedModel) -> int:
        return sum(
            self._fuse(captured, node)
            for node in list(captured.graph)
            if (node.op_type, node.domain) == ("ChosenExperts", CAPTURE_DOMAIN)
        )

    @staticmethod
    def _fuse(captured: CapturedModel, node: ir.Node) -> int:
        x, chosen, weights, gate_up, down = node.inputs
        route = producer(chosen, "Route", CAPTURE_DOMAIN)
        sources = captured.weight_of(gate_up), captured.weight_of(down)
        if route is None or [chosen, weights] != list(route.outputs) or gate_up is None or down is None:
            return 0
        if sources[0] is None or sources[1] is None or len(dims(x) or ()) != 2:
            return 0
        experts = (dims(route.inputs[0]) or ())[-1]
        attributes = {
            "experts": experts,
            **{name: route.attributes[name].value for name in ("top_k", "normalise", "scale")},
            "activation": node.attributes["activation"].as_string(),
        }
        for value, source, prefix in ((gate_up, sources[0], "gate_up"), (down, sources[1], "down")):
            value.shape = ir.Shape(source.shape)
            attributes |= {f"{prefix}_rows": source.shape[0], f"{prefix}_columns": source.shape[1]}
        (result,) = add_ortolan(
            captured, node, "Experts", [x, route.inputs[0], gate_up, down], [dims(x) or ()], attributes
        )
        replace(node.outputs[0], result)
        return 1
