"""The weights of one lowering: bound to a checkpoint, quantised once each, stored under the graph's names."""

from __future__ import annotations

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.parameters import TensorReader, bind, tensor_names
from export.quantise import QuantisedWeight
from export.sources import Unit
from export.stored import FloatType, Plain
from export.tensors import RowSource, StoredTensor
from ops.layout import QuantForm

FLOAT_TYPES: dict[FloatType, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


class WeightStore:
    """Adds initialisers to `graph` and remembers the tensor behind each; equal requests give equal values."""

    def __init__(
        self,
        captured: CapturedModel,
        graph: ir.Graph,
        tensor: TensorReader,
        quantised: type[QuantisedWeight] = QuantisedWeight,
    ) -> None:
        """quantised: the class, and with it the layout, of weights in integers."""
        self.tensors: dict[str, StoredTensor] = {}
        self._captured = captured
        self._graph = graph
        self._tensor = tensor
        self._sources: dict[str, RowSource] = {}
        self._quantised: dict[tuple[str, QuantForm], QuantisedWeight] = {}
        self._quantised_type = quantised

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

    def plain(self, name: str, dtype: FloatType = "float32") -> ir.Value:
        """The weight in float numbers, under its own name."""
        return self._store(name, Plain(self.source(name), dtype), FLOAT_TYPES[dtype])

    def unit(self, name: str) -> ir.Value:
        """The power of two that takes the largest of a weight's values below 1, float32 [1]."""
        return self._store(f"{name}.unit", Plain(Unit(self.source(name)), "float32"), ir.DataType.FLOAT)

    def quantised(self, name: str, form: QuantForm) -> QuantisedWeight:
        """The weight in integers; `packed` stores it."""
        key = (name, form)
        if key not in self._quantised:
            self._quantised[key] = self._quantised_type(self.source(name), form)
        return self._quantised[key]

    def packed(self, name: str, weight: QuantisedWeight) -> ir.Value:
        """A quantised weight as an initialiser. A head and an embedding of one form share it."""
        return self._store(f"{name}.int{weight.form.bits}", weight, ir.DataType.UINT8)

    def _store(self, name: str, stored: StoredTensor, dtype: ir.DataType) -> ir.Value:
        known = self._graph.initializers.get(name)
        if known is None or name not in self.tensors:
            known = known or ir.Value(name=name)
            known.type, known.shape = ir.TensorType(dtype), ir.Shape(stored.shape)
            if name not in self._graph.initializers:
                self._graph.initializers.add(known)
            self.tensors[name] = stored
        return known
