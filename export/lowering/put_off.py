"""Leaves a norm between quantised products to them: the one before adds the residual, those behind scale sums.

A norm of few rows takes longer to start than to compute. Where the sum that it normalises comes from a QuantMatMul,
and only QuantMatMul read what it gives, the first becomes QuantMatMulAddRMSNorm and the others get its squares. For
products in 16 bits that was no gain, nor for weights in narrow groups or with minima (docs/cuda.md).
"""

from __future__ import annotations

import onnx_ir as ir

from export.lowering.weights import WeightStore
from export.passes.base import only_use, producer
from ops.schema import DOMAIN

_KIND = "QuantMatMul"
_BIAS, _SQUARES = 3, 5
#: Columns of a group from which on a product scales sums instead of weights.
_WIDE_GROUP = 64


def put_off_norms(graph: ir.Graph, store: WeightStore) -> None:
    """Leave every such norm of a graph, whose values have 16 bits, to the products around it."""
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, "AddRMSNorm"):
            _put_off(graph, store, node)


def _put_off(graph: ir.Graph, store: WeightStore, norm: ir.Node) -> None:
    first, second, weight = norm.inputs
    y = norm.outputs[0]
    readers = list(y.uses())
    if weight is None or not store.holds(weight) or not readers or y.is_graph_output():
        return
    if not all(use.idx == 0 and _is_wide_product(use.node) for use in readers):
        return
    for own, residual in ((first, second), (second, first)):
        product = _product(own, norm)
        if product is not None:
            added = _with_norm(store, product, norm, residual, weight)
            for use in readers:
                _set_input(use.node, _SQUARES, added.outputs[2])
            _replace(graph, product, norm, added)
            return


def _is_wide_product(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != (DOMAIN, _KIND):
        return False
    minima = node.attributes.get("minima")
    return node.attributes["group"].as_int() >= _WIDE_GROUP and (minima is None or minima.as_int() == 0)


def _product(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The product that makes `value` for `reader` alone and does nothing else besides."""
    product = producer(value, _KIND, DOMAIN)
    if product is None or value is None or only_use(value) is not reader or not _is_wide_product(product):
        return None
    busy = "activation" in product.attributes or _input(product, _SQUARES) is not None
    return None if busy else product


def _with_norm(
    store: WeightStore, product: ir.Node, norm: ir.Node, residual: ir.Value | None, weight: ir.Value
) -> ir.Node:
    """The node that does what `product` and `norm` do."""
    inputs: list[ir.Value | None] = [*product.inputs[:2], residual, weight, store.unit(str(weight.name))]
    bias = _input(product, _BIAS)
    if bias is not None:
        inputs.append(bias)
    attributes = [*product.attributes.values(), norm.attributes["epsilon"]]
    added = ir.Node(DOMAIN, f"{_KIND}AddRMSNorm", inputs, attributes, num_outputs=3)
    for output, source in zip(added.outputs, norm.outputs, strict=False):
        output.type, output.shape = source.type, source.shape
    squares = added.outputs[2]
    squares.type, squares.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, None])
    return added


def _replace(graph: ir.Graph, product: ir.Node, norm: ir.Node, added: ir.Node) -> None:
    """Put `added` in the place of both; its outputs keep the norm's names."""
    names = [output.name for output in norm.outputs]
    ir.convenience.replace_nodes_and_values(graph, norm, [norm], [added], norm.outputs, added.outputs[:2])
    for output, name in zip(added.outputs, [*names, f"{names[0]}.squares"], strict=True):
        output.name = name
    graph.remove(product, safe=True)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
