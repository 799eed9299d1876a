"""activation(gate) * up over the two halves of one linear becomes GatedActivation."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_ortolan, dims, only_use, producer, replace
from export.sources import Concat, RowSlice
from ops.schema import DOMAIN


class FuseGatedActivation(Pass):
    """Where the activated half comes second, the rows of the linear's weight change places."""

    def run(self, captured: CapturedModel) -> int:
        return sum(self._fuse(captured, node) for node in list(captured.graph) if node.op_type == "Mul")

    def _fuse(self, captured: CapturedModel, node: ir.Node) -> int:
        for active, up in (node.inputs, tuple(reversed(node.inputs))):
            activation, gate = _activation(active)
            split = producer(up, "Split")
            if gate is None or up is None or split is None or gate.producer() is not split:
                continue
            shapes = {dims(output) for output in split.outputs}
            if len(split.outputs) != 2 or len(shapes) != 1 or gate is up:
                continue
            packed: ir.Value | None = split.inputs[0]
            if gate.index() == 1:
                packed = _swap_halves(captured, split)
            if packed is None:
                continue
            (result,) = add_ortolan(
                captured, node, "GatedActivation", [packed], [dims(up) or ()], {"activation": activation}
            )
            replace(node.outputs[0], result)
            return 1
        return 0


def _activation(value: ir.Value | None) -> tuple[str, ir.Value | None]:
    """The name of an activation and what it is applied to."""
    gelu = producer(value, "Gelu")
    if gelu is not None:
        kind = gelu.attributes["approximate"].as_string() if "approximate" in gelu.attributes else "none"
        return ("gelu_tanh" if kind == "tanh" else "gelu"), gelu.inputs[0]
    product = producer(value, "Mul")
    for x, factor in (product.inputs, tuple(reversed(product.inputs))) if product else ():
        sigmoid = producer(factor, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return "silu", x
    return "", None


def _swap_halves(captured: CapturedModel, split: ir.Node) -> ir.Value | None:
    """The linear under a split once more, with the second half of its rows first."""
    linear = producer(split.inputs[0], "Linear", DOMAIN)
    if linear is None or only_use(linear.outputs[0]) is not split:
        return None
    swapped = []
    for value in linear.inputs[1:]:
        source = captured.weight_of(value)
        if value is None or source is None:
            return None
        rows = source.shape[0]
        halves = [RowSlice(source, rows // 2, rows), RowSlice(source, 0, rows // 2)]
        swapped.append(captured.add_weight(f"{value.name}.swapped", Concat(halves)))
    return add_ortolan(captured, linear, "Linear", [linear.inputs[0], *swapped], [dims(linear.outputs[0]) or ()])[0]
