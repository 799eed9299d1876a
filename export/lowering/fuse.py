"""Fuses what surrounds a QuantMatMul into it: a gated activation, the addition of a residual, a norm of its input.

Every node costs a step its start, and writing and reading what lies between: a layer comes down from eight nodes to
five.
"""

from __future__ import annotations

import onnx_ir as ir

from export.passes.base import dims, only_use, producer
from ops.layout import TILE
from ops.schema import DOMAIN

_NORM, _RESIDUAL = 2, 4


def fuse(graph: ir.Graph) -> None:
    """Fuse wherever the meaning of QuantMatMul allows it."""
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, "GatedActivation"):
            _activation(graph, node)
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, "AddRMSNorm"):
            _residual(graph, node)
        elif (node.domain, node.op_type) == ("", "Add"):
            _addition(graph, node)
    for node in list(graph):
        if (node.domain, node.op_type) == ("", "RMSNormalization"):
            _norm(graph, node)
    graph.sort()


def _activation(graph: ir.Graph, node: ir.Node) -> None:
    """Multiply the gate where its product is made, if gate and up are whole tiles."""
    product = _product(node.inputs[0], node)
    if product is None or product.attributes["rows"].as_int() % (2 * TILE):
        return
    product.attributes.add(ir.AttrString("activation", node.attributes["activation"].as_string()))
    _take_over(graph, node, node.outputs[0], product.outputs[0])
    product.outputs[0].shape = node.outputs[0].shape


def _residual(graph: ir.Graph, node: ir.Node) -> None:
    """Add a residual where one of its two terms is made; the norm of the sum becomes a node of its own."""
    first, second, weight = node.inputs
    for own, other in ((first, second), (second, first)):
        product = _product(own, node)
        if product is None or own is None or _input(product, _RESIDUAL) is not None:
            continue
        _set_input(product, _RESIDUAL, other)
        attributes = [ir.AttrInt64("axis", -1), *node.attributes.values()]
        norm = ir.Node("", "RMSNormalization", [own, weight], attributes)
        norm.outputs[0].type, norm.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        graph.insert_before(node, norm)
        ir.convenience.replace_all_uses_with(node.outputs[0], norm.outputs[0])
        _take_over(graph, node, node.outputs[1], own)
        return


def _addition(graph: ir.Graph, node: ir.Node) -> None:
    """The same for an addition without a norm."""
    first, second = node.inputs
    for own, other in ((first, second), (second, first)):
        product = _product(own, node)
        if product is None or dims(own) != dims(other) or _input(product, _RESIDUAL) is not None:
            continue
        _set_input(product, _RESIDUAL, other)
        _take_over(graph, node, node.outputs[0], own)
        return


def _norm(graph: ir.Graph, node: ir.Node) -> None:
    """Normalise where rows are rounded for their product; rows that are only chosen first, are chosen first."""
    source, weight = node.inputs[:2]
    epsilon = node.attributes.get("epsilon")
    gather = only_use(node.outputs[0])
    chosen = gather is not None and gather.op_type == "Gather" and not gather.domain and _chooses_rows(gather, node)
    result = gather.outputs[0] if chosen and gather is not None else node.outputs[0]
    uses = result.uses()
    readers = {use.node for use in uses}
    fits = all(
        (reader.domain, reader.op_type, use) == (DOMAIN, "QuantMatMul", 0) and _input(reader, _NORM) is None
        for reader, use in ((use.node, use.idx) for use in uses)
    )
    if not readers or not fits or result.is_graph_output() or epsilon is None:
        return
    for reader in readers:
        _set_input(reader, _NORM, weight)
        reader.attributes.add(ir.AttrFloat32("norm_epsilon", epsilon.as_float()))
    _take_over(graph, node, node.outputs[0], source)


def _chooses_rows(gather: ir.Node, node: ir.Node) -> bool:
    """Whether a Gather takes rows of what `node` gives."""
    axis = gather.attributes.get("axis")
    return gather.inputs[0] is node.outputs[0] and (axis is None or axis.as_int() == 0)


def _product(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The QuantMatMul that makes `value` for `reader` alone and does not activate yet."""
    product = producer(value, "QuantMatMul", DOMAIN)
    if product is None or value is None or only_use(value) is not reader or "activation" in product.attributes:
        return None
    return product


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _take_over(graph: ir.Graph, node: ir.Node, old: ir.Value, new: ir.Value | None) -> None:
    """Let `new` be read instead of `old`, and remove the node that made it."""
    if new is None:
        raise ValueError(f"{node.op_type} lacks an input")
    ir.convenience.replace_all_uses_with(old, new)
    graph.remove(node, safe=True)
