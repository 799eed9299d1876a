"""Turns a graph of float32 values into one of 16 bits; logits and what comes after them stay in float32."""

from __future__ import annotations

import onnx_ir as ir

_LOGITS = ("Logits", "QuantLogits")
_FLOAT = ir.DataType.FLOAT


def to_half(graph: ir.Graph, dtype: ir.DataType, wide: set[str], narrow: set[str]) -> None:
    """Change the type of every float32 value but those named in `wide`, of logits, and of what is made of them up
    to the values named in `narrow`.

    Constants are rounded to the type; one that float32 and 16-bit nodes both read is kept in both.
    """
    for value in graph.inputs:
        if value.dtype == _FLOAT:
            value.type = ir.TensorType(dtype)
    late: set[ir.Value] = set()
    for node in graph:
        after = node.op_type in _LOGITS or any(value in late for value in node.inputs if value is not None)
        after = after and not any(output.name in narrow for output in node.outputs)
        for output in node.outputs:
            if after:
                late.add(output)
                if node.op_type in _LOGITS:
                    output.type = ir.TensorType(_FLOAT)
            elif output.dtype == _FLOAT:
                output.type = ir.TensorType(dtype)
        if node.op_type == "Cast" and not after and node.attributes["to"].as_int() == _FLOAT:
            node.attributes.add(ir.AttrInt64("to", dtype))
    for value in list(graph.initializers.values()):
        if value.dtype != _FLOAT or value.name in wide:
            continue
        readers = [use.node for use in value.uses()]
        wanted = [node for node in readers if _is_late(node, late)]
        if wanted and len(wanted) < len(readers):
            _keep_wide_copy(graph, value, wanted)
        elif wanted:
            continue
        _round(value, dtype)


def _is_late(node: ir.Node, late: set[ir.Value]) -> bool:
    return node.op_type not in _LOGITS and any(output in late for output in node.outputs)


def _round(value: ir.Value, dtype: ir.DataType) -> None:
    value.type = ir.TensorType(dtype)
    if value.const_value is not None:
        array = value.const_value.numpy().astype(dtype.numpy())
        value.const_value = ir.tensor(array, dtype=dtype, name=value.name)


def _keep_wide_copy(graph: ir.Graph, value: ir.Value, readers: list[ir.Node]) -> None:
    copy = ir.Value(name=f"{value.name}.float32", type=value.type, shape=value.shape, const_value=value.const_value)
    graph.initializers.add(copy)
    for node in readers:
        for index, given in enumerate(node.inputs):
            if given is value:
                node.replace_input_with(index, copy)
