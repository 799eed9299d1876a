"""Takes the batch axis of one off: a step is token-packed, so every value is [T, ...] and not [1, T, ...]."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.passes.base import Pass, add_node, constant, dims, producer, replace, squeezed, unsqueezed
from ops.schema import DOMAIN

_UNARY = {"Sigmoid", "Tanh", "Gelu", "Relu", "Erf", "Sqrt", "Exp", "Neg", "Cast", "Softplus"}
_BINARY = {"Add", "Sub", "Mul", "Div", "Pow"}
_ROWWISE = {"Linear", "RMSNorm", "GatedActivation"}


class DropBatch(Pass):
    """Moves each Unsqueeze behind its reader until none is left: the readers work on rows alone."""

    def run(self, captured: CapturedModel) -> int:
        return sum(self._drop(captured, node) for node in list(captured.graph))

    def _drop(self, captured: CapturedModel, node: ir.Node) -> int:
        if node.op_type == "Reshape":
            return _reshape(captured, node)
        inputs = [_without_batch(value) for value in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return 0
        if not _movable(node, inputs):
            return 0
        attributes = dict(node.attributes)
        rank = len(dims(node.outputs[0]) or ())
        if node.op_type == "Split":
            attributes["axis"] = ir.AttrInt64("axis", attributes["axis"].as_int() % rank - 1)
        elif node.op_type == "LayerNormalization":
            attributes["axis"] = ir.AttrInt64("axis", -1)
        outputs = add_node(
            captured,
            node,
            node.op_type,
            inputs,
            [(dims(output) or ())[1:] for output in node.outputs],
            attributes,
            node.domain,
            [output.dtype or ir.DataType.FLOAT for output in node.outputs],
        )
        for old, new in zip(node.outputs, outputs, strict=True):
            replace(old, unsqueezed(captured, node, new))
        return 1


def _reshape(captured: CapturedModel, node: ir.Node) -> int:
    """A reshape that does nothing but take the batch axis off, or put it on."""
    source, before, after = node.inputs[0], dims(node.inputs[0]), dims(node.outputs[0])
    if source is None or before is None or after is None:
        return 0
    if before == (1, *after):
        replace(node.outputs[0], squeezed(captured, node, source))
    elif after == (1, *before):
        replace(node.outputs[0], unsqueezed(captured, node, source))
    else:
        return 0
    return 1


def _without_batch(value: ir.Value | None) -> ir.Value | None:
    source = producer(value, "Unsqueeze")
    return source.inputs[0] if source is not None and constant(source.inputs[1]) == [0] else value


def _movable(node: ir.Node, inputs: list[ir.Value | None]) -> bool:
    """Whether a node gives the same rows when its inputs lose their batch axis."""
    if node.domain == DOMAIN:
        return node.op_type in _ROWWISE
    rank = len(dims(node.outputs[0]) or ())
    if node.op_type in _UNARY:
        return True
    if node.op_type in _BINARY:
        return all(
            new is not old or ((shape := dims(old)) is not None and len(shape) < rank)
            for new, old in zip(inputs, node.inputs, strict=True)
        )
    if node.op_type == "LayerNormalization":
        return node.attributes["axis"].as_int() in (-1, rank - 1)
    if node.op_type == "Split":
        return bool(node.attributes["axis"].as_int() % rank > 0)
    return node.op_type == "Gather" and inputs[0] is node.inputs[0] and _axis(node) == 0


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 0
