"""Leaves a norm between products to these: the one before adds the residual, those behind it scale what they sum.

A norm of few rows takes longer to start than to compute. Where the sum that it normalises comes from a product, and
only products read what it gives, the first becomes LinearAddRMSNorm or QuantMatMulAddRMSNorm and the others get its
squares.
"""

from __future__ import annotations

import onnx_ir as ir

from export.lowering.weights import WeightStore
from export.passes.base import only_use, producer
from ops.schema import DOMAIN

#: Where products have their bias and their squares.
_INPUTS = {"Linear": (2, 3), "QuantMatMul": (3, 5)}


def put_off_norms(graph: ir.Graph, store: WeightStore) -> None:
    """Do so wherever it is possible, in a graph whose values have 16 bits."""
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, "AddRMSNorm"):
            _put_off(graph, store, node)


def _put_off(graph: ir.Graph, store: WeightStore, norm: ir.Node) -> None:
    first, second, weight = norm.inputs
    y, total = norm.outputs
    readers = list(y.uses())
    if weight is None or not store.holds(weight) or not readers or y.is_graph_output():
        return
    if any(use.node.domain != DOMAIN or use.node.op_type not in _INPUTS or use.idx for use in readers):
        return
    for own, residual in ((first, second), (second, first)):
        product = _product(own, norm)
        if product is None:
            continue
        added = _with_norm(store, product, norm, residual)
        squares = added.outputs[2]
        for use in readers:
            _set_input(use.node, _INPUTS[use.node.op_type][1], squares)
        names = y.name, total.name
        ir.convenience.replace_nodes_and_values(graph, norm, [norm], [added], [y, total], added.outputs[:2])
        for output, name in zip(added.outputs, names, strict=False):
            output.name = name
        squares.name = f"{y.name}.squares"
        graph.remove(product, safe=True)
        return


def _product(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The product that makes `value` for `reader` alone and does nothing else besides."""
    if value is None or only_use(value) is not reader:
        return None
    product = producer(value, "Linear", DOMAIN) or producer(value, "QuantMatMul", DOMAIN)
    if product is None or "activation" in product.attributes:
        return None
    return product if _input(product, _INPUTS[product.op_type][1]) is None else None


def _with_norm(store: WeightStore, product: ir.Node, norm: ir.Node, residual: ir.Value | None) -> ir.Node:
    """The node that does what `product` and `norm` do."""
    weight, (y, total) = norm.inputs[2], norm.outputs
    bias = _input(product, _INPUTS[product.op_type][0])
    inputs: list[ir.Value | None] = [*product.inputs[:2], residual, weight, bias]
    if y.dtype == ir.DataType.FLOAT16:
        inputs.append(store.unit(str(weight.name)))  # type: ignore[union-attr]
    elif bias is None:
        inputs.pop()
    attributes = [*product.attributes.values(), norm.attributes["epsilon"]]
    added = ir.Node(DOMAIN, f"{product.op_type}AddRMSNorm", inputs, attributes, num_outputs=3)
    for output, source in zip(added.outputs, (y, total), strict=False):
        output.type, output.shape = source.type, source.shape
    squares = added.outputs[2]
    rows = total.shape[0] if total.shape is not None else None
    squares.type, squares.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, rows])
    return added


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
