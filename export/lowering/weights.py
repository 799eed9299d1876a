"""The weights of one lowering: bound to a checkpoint, quantised once each, stored under the graph's names."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.parameters import TensorReader, bind, tensor_names
from export.quantise import QuantisedWeight
from export.recipe import WeightFormat
from export.stored import Plain
from export.tensors import RowSource, StoredTensor


class WeightStore:
    """Adds initialisers to `graph` and remembers the tensor behind each; equal requests give equal values."""

    def __init__(self, captured: CapturedModel, graph: ir.Graph, tensor: TensorReader) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        self._captured = captured
        self._graph = graph
        self._tensor = tensor
        self._sources: dict[str, RowSource] = {}
        self._quantised: dict[tuple[str, WeightFormat], QuantisedWeight] = {}

    def holds(self, value: ir.Value | None) -> bool:
        """Whether a value is a weight of the captured graph."""
        return self._captured.weight_of(value) is not None

    def source(self, name: str) -> RowSource:
        """A weight of the captured graph over the checkpoint."""
        if name not in self._sources:
            captured = self._captured
            self._sources[name] = bind(captured.weights[name], self._tensor, captured.constants)
        return self._sources[name]

    def parameters(self, name: str) -> tuple[str, ...]:
        """The parameters that a weight is made of."""
        return tuple(dict.fromkeys(tensor_names(self._captured.weights[name].recipe())))

    def plain(self, name: str) -> ir.Value:
        """The weight in float32, under its own name."""
        return self._store(name, Plain(self.source(name)), ir.DataType.FLOAT)

    def quantised(self, name: str, form: WeightFormat) -> QuantisedWeight:
        """The weight in integers; `parts` stores it."""
        key = (name, form)
        if key not in self._quantised:
            self._quantised[key] = QuantisedWeight(self.source(name), form.bits, form.group, form.symmetric)
        return self._quantised[key]

    def parts(
        self, name: str, weight: QuantisedWeight, values_shape: tuple[int, ...] | None = None, view: str = ""
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Values, scales and zero points as initialisers.

        values_shape: the shape in which the operator wants the values, if not the stored one; `view` then tells
        their names apart. The bytes are the same, so a bundle keeps them once.
        """
        bits = f"int{weight.bits}{view}"
        values = self._store(f"{name}.{bits}", weight.values, ir.DataType.UINT8, values_shape)
        scales = self._store(f"{name}.int{weight.bits}.scales", weight.scales, ir.DataType.FLOAT)
        zeros = None
        if weight.zero_points is not None:
            zeros = self._store(f"{name}.int{weight.bits}.zeros", weight.zero_points, ir.DataType.UINT8)
        return values, scales, zeros

    def _store(
        self, name: str, stored: StoredTensor, dtype: ir.DataType, shape: tuple[int, ...] | None = None
    ) -> ir.Value:
        known = self._graph.initializers.get(name)
        if known is None or name not in self.tensors:
            known = known or ir.Value(name=name)
            known.type, known.shape = ir.TensorType(dtype), ir.Shape(shape or stored.shape)
            if name not in self._graph.initializers:
                self._graph.initializers.add(known)
            self.tensors[name] = stored
        return known
