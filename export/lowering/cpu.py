"""Lowering for the CPU provider: float32 activations; weights in float32, or in integers in the layout cpu-vnni.

Linear -> Gemm (float32; it reads [N, K] as checkpoints keep it, and its bits for a row do not depend on the
other rows) or QuantMatMul, into which is fused what surrounds it; RMSNorm -> RMSNormalization; an embedding in
integers -> QuantGather, which reads the bytes that a tied head multiplies by. The other operators of ai.ortolan
have kernels of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.capture.captured import CapturedModel, is_head
from export.capture.schemas import CAPTURE_DOMAIN
from export.lowering.base import IntegerWeight, LoweredModel, Lowering
from export.lowering.fuse import fuse
from export.lowering.weights import WeightStore
from export.parameters import TensorReader
from export.quantise import QuantisedWeight
from export.recipe import Recipe, Role
from ops.errors import ConfigError
from ops.layout import QuantForm
from ops.schema import DOMAIN, VERSION
from rtcore.manifest import CacheTensor

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
            cache_tensors=_cache_tensors(captured, recipe),
            recipe=recipe.record() | writer.record(),
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
        self.linear_bytes += quantised.nbytes
        inputs: list[ir.Value | None] = [x, self.store.packed(name, quantised)]
        if bias is not None:
            inputs += [None, bias]
        self._replace(node, ir.Node(DOMAIN, "QuantMatMul", inputs, _attributes(quantised)))

    def _embedding(self, node: ir.Node) -> None:
        name = str(node.inputs[0].name)
        form = self._form(name, "embedding")
        if form is None:
            return
        quantised = self._quantise(name, "embedding", form)
        inputs = [self.store.packed(name, quantised), node.inputs[1]]
        self._replace(node, ir.Node(DOMAIN, "QuantGather", inputs, _attributes(quantised)))

    def store_the_rest(self, captured: CapturedModel) -> None:
        """Store, in float32, every weight that a node still reads as it was."""
        for name, value in list(self.graph.initializers.items()):
            if name in captured.weights and value.uses():
                self.store.plain(name)

    def record(self) -> dict[str, Any]:
        """What a manifest says of single weights: those kept in more bits, or with the precision native how many
        are in which form."""
        if not self.recipe.native:
            return {"kept_higher": sorted(self.kept_higher)}
        forms = Counter(_form_name(weight.quantised.form) for weight in self.quantised)
        return {"forms": [f"{count} {name}" for name, count in sorted(forms.items())]}

    def _quantise(self, name: str, role: Role, form: QuantForm) -> QuantisedWeight:
        quantised = self.store.quantised(name, form)
        self.quantised.append(IntegerWeight(name, role, self.store.parameters(name), quantised))
        return quantised

    def _form(self, name: str, role: Role) -> QuantForm | None:
        form = self.recipe.form_of(name, role, self.store.source(name))
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


def _form_name(form: QuantForm) -> str:
    return f"int{form.bits} in groups of {form.group}{' with minima' if form.minima else ''}"


def _attributes(weight: QuantisedWeight) -> list[ir.Attr]:
    """A quantised weight's attributes for a node."""
    return [
        ir.AttrInt64(key, value) if isinstance(value, int) else ir.AttrString(key, value)
        for key, value in weight.attributes().items()
    ]


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
