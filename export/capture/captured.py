"""CapturedModel: what a capture yields and every pass and lowering works on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.checkpoint.base import Checkpoint
from export.parameters import TensorReader, checked_reader
from export.sources import Constant
from export.tensors import RowSource
from ops.schema import DOMAIN
from rtcore.manifest import CacheGroup, Dimensions


@dataclass(frozen=True)
class LayerCache:
    """The cache that one layer needs: its group and the shape of a slot's key and value."""

    layer: int
    group: int
    kv_heads: int
    head_dim: int
    v_dim: int

    @property
    def inputs(self) -> tuple[str, str]:
        return f"k_cache.{self.layer}", f"v_cache.{self.layer}"

    @property
    def outputs(self) -> tuple[str, str]:
        return f"k_cache.{self.layer}.out", f"v_cache.{self.layer}.out"


def is_head(linear: ir.Node) -> bool:
    """Whether a linear comes after the choice of rows, and so gives logits: S rows where others give T."""
    shape = linear.outputs[0].shape
    return shape is not None and not isinstance(shape[0], int) and shape[0].value == "S"


def is_router(linear: ir.Node) -> bool:
    """Whether what a linear gives, by itself or as a part, decides which experts rows go to."""
    readers = [use.node for use in linear.outputs[0].uses()]
    parts = [
        use.node for node in readers if node.op_type == "Split" for part in node.outputs for use in part.uses()
    ]
    return any((node.domain, node.op_type) == (DOMAIN, "Experts") for node in (*readers, *parts))


def of_a_token(node: ir.Node, count: int) -> int:
    """What one token has to do with of `count` weights (or their bytes) of a node: all, or those of its experts."""
    if node.op_type != "Experts":
        return count
    return count * int(node.attributes["top_k"].as_int()) // int(node.attributes["experts"].as_int())


@dataclass
class CapturedModel:
    """A semantic graph that names no hardware, and what its weights are in terms of parameters.

    model: nodes of ai.ortolan and of plain ONNX; its inputs are those of a step, then the cache tensors. Its
    weight initialisers have a type and a shape but no content: weights holds an expression for each, by name,
    over unbound parameters. shapes: every parameter of the model by name; aliases: the names of tied
    parameters by the one that expressions use. constants: the arrays that expressions name by digest.
    tables: rotary tables [context, rotary_dims], cos | sin, by name.
    """

    model: ir.Model
    family: str
    dimensions: Dimensions
    weights: dict[str, RowSource] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    tables: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cache_groups: tuple[CacheGroup, ...] = ()
    caches: tuple[LayerCache, ...] = ()

    @property
    def graph(self) -> ir.Graph:
        return self.model.graph

    def copy(self) -> CapturedModel:
        """One whose graph and weights can be changed without changing this one's."""
        return replace(self, model=self.model.clone(), weights=dict(self.weights), constants=dict(self.constants))

    def reader(self, checkpoint: Checkpoint) -> TensorReader:
        """Opens a checkpoint's tensors by this model's parameter names, checking their shapes."""
        return checked_reader(checkpoint.tensor, checkpoint.names(), self.shapes, self.aliases)

    def weight_of(self, value: ir.Value | None) -> RowSource | None:
        """The expression of a graph value, if it is a weight."""
        return None if value is None or value.name is None else self.weights.get(value.name)

    def add_weight(self, name: str, source: RowSource) -> ir.Value:
        """A new float32 initialiser, or the one there is of that name."""
        known = self.graph.initializers.get(name)
        if known is not None:
            return known
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(source.shape))
        self.graph.initializers.add(value)
        self.weights[name] = source
        return value

    def add_constant(self, name: str, array: NDArray[np.float32]) -> ir.Value:
        """A weight that no checkpoint holds."""
        constant = Constant(array)
        self.constants[constant.recipe()["sha256"]] = constant.array
        return self.add_weight(name, constant)

    def drop_unused_weights(self) -> None:
        """Remove initialisers that nothing reads, and the expressions of those that are gone."""
        initializers = self.graph.initializers
        for name, value in list(initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del initializers[name]
        self.weights = {name: source for name, source in self.weights.items() if name in initializers}
