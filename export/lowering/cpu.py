"""Lowering for the CPU provider: float32 activations; weights in float32, or in integers in the layout cpu-vnni.

Linear -> Gemm (float32; it reads [N, K] as checkpoints keep it, and its bits for a row do not depend on the
other rows) or QuantMatMul, into which is fused what surrounds it; RMSNorm -> RMSNormalization; an embedding in
integers -> QuantGather, which reads the bytes that a tied head multiplies by; Experts keeps its two weights in
float32 or in integers. A router stays in float32: which experts a row goes to is not to depend on rounding. The
other operators of ai.ortolan have kernels of their own.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.capture.captured import CapturedModel, is_head, is_router
from export.capture.schemas import CAPTURE_DOMAIN
from export.lowering.base import LoweredModel, Lowering
from export.lowering.fuse import fuse
from export.lowering.graph import StepWriter, cache_tensors, quantised_attributes
from export.lowering.weights import WeightStore
from export.parameters import TensorReader
from export.recipe import Recipe, Role
from ops.errors import ConfigError
from ops.layout import TILE
from ops.schema import DOMAIN, VERSION

IR_VERSION = 10
_CACHE_TYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}


class CpuLowering(Lowering):
    """The step graph of the CPU provider."""

    target = "cpu"

    def lower(self, captured: CapturedModel, recipe: Recipe, tensor: TensorReader) -> LoweredModel:
        model = captured.model.clone()
        model.ir_version = IR_VERSION
        model.opset_imports.pop(CAPTURE_DOMAIN, None)
        model.opset_imports.update({DOMAIN: VERSION})
        store = WeightStore(captured, model.graph, tensor)
        writer = _StepWriter(model.graph, store, recipe)
        for node in list(model.graph):
            writer.lower(node)
        if recipe.native and not writer.quantised:
            raise ConfigError(
                "The checkpoint is not quantised, so there is no precision native of it.",
                remedy="Choose fp32, int8 or int4, or name a quantised .gguf file.",
                param="--precision",
            )
        writer.store_the_rest(captured)
        fuse(model.graph)
        RemoveUnusedNodesPass()(model)
        _type_caches(captured, model.graph, recipe)
        present = model.graph.initializers
        return LoweredModel(
            step=model,
            tensors={name: stored for name, stored in store.tensors.items() if name in present},
            cache_groups=captured.cache_groups,
            cache_tensors=cache_tensors(captured, recipe),
            recipe=recipe.record() | writer.record(),
            linear_bytes=writer.linear_bytes,
            expert_bytes=writer.expert_bytes,
            quantised=writer.quantised,
        )


class _StepWriter(StepWriter):
    """Replaces the nodes of one graph."""

    def lower(self, node: ir.Node) -> None:
        """Replace one node, if the target has another form of it."""
        if (node.domain, node.op_type) == (DOMAIN, "Linear"):
            self._linear(node)
        elif (node.domain, node.op_type) == (DOMAIN, "RMSNorm"):
            attributes = [ir.AttrInt64("axis", -1), *node.attributes.values()]
            self.replace(node, ir.Node("", "RMSNormalization", node.inputs, attributes))
        elif (node.domain, node.op_type) == ("", "Gather") and self.store.holds(node.inputs[0]):
            self.embedding(node)
        elif (node.domain, node.op_type) == (DOMAIN, "Experts"):
            self._experts(node)

    def _experts(self, node: ir.Node) -> None:
        """Each of the two weights in the form that the recipe gives it, if its experts are whole tiles of it."""
        experts = node.attributes["experts"].as_int()
        inputs, attributes = list(node.inputs[:2]), dict(node.attributes)
        for index, (prefix, parts) in enumerate((("gate_up", 2), ("down", 1)), start=2):
            weight = node.inputs[index]
            name = "" if weight is None else str(weight.name)
            whole_tiles = self.store.source(name).shape[0] // experts % (parts * TILE) == 0
            form = self.form_if(whole_tiles, name, "linear")
            if form is None:
                inputs.append(weight)
                self.count_experts(node, self.plain_bytes(name))
                continue
            quantised = self.quantise(name, "linear", form)
            inputs.append(self.store.packed(name, quantised))
            attributes |= {one.name: one for one in quantised_attributes(quantised, f"{prefix}_")}
            self.count_experts(node, quantised.nbytes)
        self.replace(node, ir.Node(DOMAIN, "Experts", inputs, attributes.values()))

    def _linear(self, node: ir.Node) -> None:
        x, weight = node.inputs[:2]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        name = str(weight.name)
        role: Role = "head" if is_head(node) else "linear"
        form = self.form_if(not is_router(node), name, role)
        if bias is not None:
            self.linear_bytes += self.plain_bytes(str(bias.name))
        if form is None:
            self.linear_bytes += self.plain_bytes(name)
            attributes = [ir.AttrInt64("transB", 1)]
            self.replace(node, ir.Node("", "Gemm", [x, weight, bias] if bias else [x, weight], attributes))
            return
        quantised = self.quantise(name, role, form)
        self.linear_bytes += quantised.nbytes
        inputs: list[ir.Value | None] = [x, self.store.packed(name, quantised)]
        if bias is not None:
            inputs += [None, bias]
        self.replace(node, ir.Node(DOMAIN, "QuantMatMul", inputs, quantised_attributes(quantised)))

    def store_the_rest(self, captured: CapturedModel) -> None:
        """Store, in float32, every weight that a node still reads as it was."""
        for name, value in list(self.graph.initializers.items()):
            if name in captured.weights and value.uses():
                self.store.plain(name)


def _type_caches(captured: CapturedModel, graph: ir.Graph, recipe: Recipe) -> None:
    names = {name for cache in captured.caches for name in (*cache.inputs, *cache.outputs)}
    for value in (*graph.inputs, *graph.outputs):
        if value.name in names:
            value.type = ir.TensorType(_CACHE_TYPES[recipe.cache_dtype])
