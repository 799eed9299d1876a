"""The interface of a pass and the few moves that passes make on a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from export.capture.captured import CapturedModel
from ops.schema import DOMAIN, VERSION

Shape = Sequence[int | str | ir.SymbolicDim]


class Pass(ABC):
    """One rewrite of a captured graph; it keeps what the graph computes."""

    @abstractmethod
    def run(self, captured: CapturedModel) -> int:
        """Rewrite in place and return how many places were rewritten."""


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes `value`, if it is an operator of this kind."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.op_type, node.domain) == (op_type, domain) else None


def only_use(value: ir.Value) -> ir.Node | None:
    """The one node that reads `value`, if there is exactly one and the graph does not give it out."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """The shape as plain integers and dimension names."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def constant(value: ir.Value | None) -> Any:
    """The content of a small constant as Python numbers, or None when it is none."""
    tensor = None if value is None else value.const_value
    return None if tensor is None else tensor.numpy().tolist()


def add_node(
    captured: CapturedModel,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    shapes: Sequence[Shape],
    attributes: dict[str, ir.Attr | int | float | str | Sequence[int]] | None = None,
    domain: str = "",
    dtypes: Sequence[ir.DataType] | None = None,
) -> tuple[ir.Value, ...]:
    """Insert a node before another and return its outputs, one a shape; floats unless dtypes says otherwise.

    Trailing absent inputs are dropped.
    """
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    node = ir.node(op_type, given, attributes or {}, domain=domain, num_outputs=len(shapes))
    for index, (output, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
        output.shape = ir.Shape(shape)
        output.type = ir.TensorType(ir.DataType.FLOAT if dtypes is None else dtypes[index])
    captured.graph.insert_before(before, node)
    if domain and domain not in captured.model.opset_imports:
        captured.model.opset_imports[domain] = VERSION
    return tuple(node.outputs)


def add_ortolan(
    captured: CapturedModel,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    shapes: Sequence[Shape],
    attributes: dict[str, Any] | None = None,
) -> tuple[ir.Value, ...]:
    """`add_node` for an operator of ai.ortolan."""
    return add_node(captured, before, op_type, inputs, shapes, attributes, DOMAIN)


def integers(captured: CapturedModel, values: Sequence[int]) -> ir.Value:
    """An int64 vector as an initialiser of the graph, shared by all that need the same numbers."""
    name = "int64." + "_".join(map(str, values))
    known = captured.graph.initializers.get(name)
    if known is None:
        tensor = ir.tensor(list(values), dtype=ir.DataType.INT64, name=name)
        known = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
        captured.graph.initializers.add(known)
    return known


def replace(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`; a graph output keeps its name."""
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def squeezed(captured: CapturedModel, before: ir.Node, value: ir.Value) -> ir.Value:
    """A value [1, ...] without its batch axis."""
    source = producer(value, "Unsqueeze")
    if source is not None and constant(source.inputs[1]) == [0] and source.inputs[0] is not None:
        return source.inputs[0]
    shape = dims(value) or ()
    return add_node(captured, before, "Squeeze", [value, integers(captured, [0])], [shape[1:]])[0]


def unsqueezed(captured: CapturedModel, before: ir.Node, value: ir.Value) -> ir.Value:
    """A value with a batch axis of one in front."""
    shape = dims(value) or ()
    return add_node(captured, before, "Unsqueeze", [value, integers(captured, [0])], [(1, *shape)])[0]
