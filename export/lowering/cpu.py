"""Lowering for the CPU provider: float32 activations; weights in float32, or int8 or int4 for MatMulNBits.

Linear -> Gemm (float32; it reads [N, K] as checkpoints keep it, and its bits for a row do not depend on the
other rows) or com.microsoft.MatMulNBits; RMSNorm -> RMSNormalization; an embedding in int8 ->
com.microsoft.GatherBlockQuantized. The other operators of ai.ortolan have kernels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.capture.captured import CapturedModel, is_head
from export.capture.schemas import CAPTURE_DOMAIN
from export.lowering.base import IntegerWeight, LoweredModel, Lowering
from export.lowering.weights import WeightStore
from export.parameters import TensorReader
from export.quantise import QuantisedWeight
from export.recipe import Recipe, Role, WeightFormat
from ops.schema import DOMAIN, VERSION
from rtcore.manifest import CacheTensor

MICROSOFT = "com.microsoft"
#: Level 4 rounds activations to int8 by row and group. Below it 8-bit weights take a path that is hundreds of
#: times slower.
ACCURACY_LEVEL = 4
IR_VERSION = 10
_CACHE_TYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}


class CpuLowering(Lowering):
    """The step graph of the CPU provider."""

    target = "cpu"

    def lower(self, captured: CapturedModel, recipe: Recipe, tensor: TensorReader) -> LoweredModel:
        model = captured.model.clone()
        model.ir_version = IR_VERSION
        model.opset_imports.pop(CAPTURE_DOMAIN, None)
        model.opset_imports.update({MICROSOFT: 1, DOMAIN: VERSION})
        store = WeightStore(captured, model.graph, tensor)
        writer = _StepWriter(model.graph, store, recipe)
        for node in list(model.graph):
            writer.lower(node)
        writer.store_the_rest(captured)
        RemoveUnusedNodesPass()(model)
        _type_caches(captured, model.graph, recipe)
        present = model.graph.initializers
        return LoweredModel(
            step=model,
            tensors={name: stored for name, stored in store.tensors.items() if name in present},
            cache_groups=captured.cache_groups,
            cache_tensors=_cache_tensors(captured, recipe),
            recipe=recipe.record() | {"kept_higher": sorted(writer.kept_higher)},
            linear_bytes=writer.linear_bytes,
            quantised=writer.quantised,
        )


class _StepWriter:
    """Replaces the nodes of one graph."""

    def __init__(self, graph: ir.Graph, store: WeightStore, recipe: Recipe) -> None:
        self.graph = graph
        self.store = store
        self.recipe = recipe
        self.kept_higher: set[str] = set()
        self.quantised: list[IntegerWeight] = []
        self.linear_bytes = 0

    def lower(self, node: ir.Node) -> None:
        """Replace one node, if the target has another form of it."""
        if (node.domain, node.op_type) == (DOMAIN, "Linear"):
            self._linear(node)
        elif (node.domain, node.op_type) == (DOMAIN, "RMSNorm"):
            attributes = [ir.AttrInt64("axis", -1), *node.attributes.values()]
            self._replace(node, ir.Node("", "RMSNormalization", node.inputs, attributes))
        elif (node.domain, node.op_type) == ("", "Gather") and self.store.holds(node.inputs[0]):
            self._embedding(node)

    def _linear(self, node: ir.Node) -> None:
        x, weight = node.inputs[:2]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        name = str(weight.name)
        role: Role = "head" if is_head(node) else "linear"
        form = self._form(name, role)
        if bias is not None:
            self.linear_bytes += self._plain_bytes(str(bias.name))
        if form is None:
            self.linear_bytes += self._plain_bytes(name)
            attributes = [ir.AttrInt64("transB", 1)]
            self._replace(node, ir.Node("", "Gemm", [x, weight, bias] if bias else [x, weight], attributes))
            return
        quantised = self._quantise(name, role, form)
        values, scales, zeros = self.store.parts(name, quantised)
        self.linear_bytes += sum(
            part.nbytes for part in (quantised.values, quantised.scales, quantised.zero_points) if part is not None
        )
        inputs: list[ir.Value | None] = [x, values, scales, zeros, None, bias]
        while inputs[-1] is None:
            inputs.pop()
        numbers = {
            "K": quantised.columns,
            "N": quantised.rows,
            "bits": form.bits,
            "block_size": form.group,
            "accuracy_level": ACCURACY_LEVEL,
        }
        attributes = [ir.AttrInt64(key, number) for key, number in numbers.items()]
        self._replace(node, ir.Node(MICROSOFT, "MatMulNBits", inputs, attributes))

    def _embedding(self, node: ir.Node) -> None:
        name = str(node.inputs[0].name)
        form = self._form(name, "embedding")
        if form is None:
            return
        if self.store.source(name).shape[1] % form.group:
            self.kept_higher.add(name)
            return
        quantised = self._quantise(name, "embedding", form)
        rows = (quantised.rows, quantised.columns * form.bits // 8)
        values, scales, zeros = self.store.parts(name, quantised, rows, ".rows")
        inputs = [values, node.inputs[1], scales, *([zeros] if zeros is not None else [])]
        numbers = {"bits": form.bits, "block_size": form.group, "gather_axis": 0, "quantize_axis": 1}
        attributes = [ir.AttrInt64(key, number) for key, number in numbers.items()]
        self._replace(node, ir.Node(MICROSOFT, "GatherBlockQuantized", inputs, attributes))

    def store_the_rest(self, captured: CapturedModel) -> None:
        """Store, in float32, every weight that a node still reads as it was."""
        for name, value in list(self.graph.initializers.items()):
            if name in captured.weights and value.uses():
                self.store.plain(name)

    def _quantise(self, name: str, role: Role, form: WeightFormat) -> QuantisedWeight:
        quantised = self.store.quantised(name, form)
        self.quantised.append(IntegerWeight(name, role, self.store.parameters(name), quantised))
        return quantised

    def _form(self, name: str, role: Role) -> WeightFormat | None:
        form = self.recipe.format_of(name, role)
        if self.recipe.bits is not None and (form is None or form.bits > self.recipe.bits):
            self.kept_higher.add(name)
        return form

    def _plain_bytes(self, name: str) -> int:
        size = 4
        for dim in self.store.source(name).shape:
            size *= dim
        return size

    def _replace(self, old: ir.Node, new: ir.Node) -> None:
        """Put `new` (one output) in the place of `old`; the output keeps name, type and shape."""
        output, source = new.outputs[0], old.outputs[0]
        output.type, output.shape = source.type, source.shape
        name = source.name
        ir.convenience.replace_nodes_and_values(self.graph, old, [old], [new], [source], [output])
        output.name = name


def _type_caches(captured: CapturedModel, graph: ir.Graph, recipe: Recipe) -> None:
    names = {name for cache in captured.caches for name in (*cache.inputs, *cache.outputs)}
    for value in (*graph.inputs, *graph.outputs):
        if value.name in names:
            value.type = ir.TensorType(_CACHE_TYPES[recipe.cache_dtype])


def _cache_tensors(captured: CapturedModel, recipe: Recipe) -> tuple[CacheTensor, ...]:
    kinds: Sequence[tuple[str, str]] = (("k", "head_dim"), ("v", "v_dim"))
    return tuple(
        CacheTensor(
            name=name,
            output=output,
            layer=cache.layer,
            group=cache.group,
            kind=kind,  # type: ignore[arg-type]
            shape=(cache.kv_heads, getattr(cache, width)),
            dtype=recipe.cache_dtype,
        )
        for cache in captured.caches
        for name, output, (kind, width) in zip(cache.inputs, cache.outputs, kinds, strict=True)
    )
