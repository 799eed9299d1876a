"""Lowering for the CUDA provider: activations in 16 bits, logits in float32, weights in 16 bits or in integers.

Linears, norms, gated activations and attention become operators of ai.ortolan, whose kernels are compiled ahead of
time; what else a family needs is left to ONNX Runtime's own kernels in the same type.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.capture.captured import CapturedModel, is_head, is_router, of_a_token
from export.capture.schemas import CAPTURE_DOMAIN
from export.lowering.base import LoweredModel, Lowering
from export.lowering.cpu import IR_VERSION
from export.lowering.graph import StepWriter, cache_tensors, quantised_attributes, scale_names
from export.lowering.half import to_half
from export.lowering.put_off import put_off_norms
from export.lowering.weights import FLOAT_TYPES, WeightStore
from export.parameters import TensorReader
from export.passes.base import only_use, producer
from export.quantise_cuda import CudaQuantisedWeight
from export.recipe import Recipe, Role
from ops.cuda_layout import BLOCK_ROWS
from ops.errors import ConfigError
from ops.schema import DOMAIN, VERSION

#: Inputs of PagedAttention that stay in float32: rotary table, norms of heads, sinks.
_WIDE_INPUTS = range(11, 17)
#: Where PagedAttention has its caches: inputs and outputs of the codes, then of their scales.
_CACHES = ((3, 1, 15, 3), (4, 2, 16, 4))
_SCALES_END = 17


class CudaLowering(Lowering):
    """The step graph of the CUDA provider."""

    target = "cuda"

    def lower(self, captured: CapturedModel, recipe: Recipe, tensor: TensorReader) -> LoweredModel:
        if recipe.float_type == "float32":
            raise ConfigError(
                f"The precision {recipe.precision} is not one of a GPU.",
                remedy="Choose bf16, fp16, int8 or int4.",
                param="--precision",
            )
        model = captured.model.clone()
        model.ir_version = IR_VERSION
        model.opset_imports.pop(CAPTURE_DOMAIN, None)
        model.opset_imports.update({DOMAIN: VERSION})
        store = WeightStore(captured, model.graph, tensor, CudaQuantisedWeight)
        writer = _CudaWriter(model.graph, store, recipe)
        for node in list(model.graph):
            writer.lower(node)
        for node in list(model.graph):
            if (node.domain, node.op_type) == (DOMAIN, "GatedActivation"):
                _fuse_activation(model.graph, node)
        wide = {
            value.name
            for node in model.graph
            if node.op_type == "PagedAttention"
            for index, value in enumerate(node.inputs)
            if value is not None and index in _WIDE_INPUTS
        }
        narrow = {node.outputs[0].name for node in model.graph if node.op_type == "Experts"} | writer.narrowed
        kind = FLOAT_TYPES[recipe.float_type]
        to_half(model.graph, kind, *({name for name in names if name is not None} for names in (wide, narrow)))
        put_off_norms(model.graph, store)
        if recipe.cache_dtype == "int8":
            _quantise_caches(model.graph)
        for name, value in list(model.graph.initializers.items()):
            if name in captured.weights and value.uses():
                store.plain(name, recipe.float_type if value.dtype != ir.DataType.FLOAT else "float32")
        RemoveUnusedNodesPass()(model)
        present = model.graph.initializers
        return LoweredModel(
            step=model,
            tensors={name: stored for name, stored in store.tensors.items() if name in present},
            cache_groups=captured.cache_groups,
            cache_tensors=cache_tensors(captured, recipe),
            recipe=recipe.record() | writer.record(),
            linear_bytes=writer.linear_bytes,
            quantised=writer.quantised,
            float_type=recipe.float_type,
        )


class _CudaWriter(StepWriter):
    """Replaces the nodes of one graph."""

    item_bytes = 2

    def __init__(self, graph: ir.Graph, store: WeightStore, recipe: Recipe) -> None:
        super().__init__(graph, store, recipe)
        #: Values that are made of logits and have 16 bits all the same.
        self.narrowed: set[str | None] = set()

    def lower(self, node: ir.Node) -> None:
        if (node.domain, node.op_type) == (DOMAIN, "Linear"):
            self._linear(node)
        elif (node.domain, node.op_type) == (DOMAIN, "Experts"):
            self._experts(node)
        elif (node.domain, node.op_type) == ("", "Gather") and self.store.holds(node.inputs[0]):
            self.embedding(node)

    def _linear(self, node: ir.Node) -> None:
        x, weight = node.inputs[:2]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        name = str(weight.name)
        head, router = is_head(node), is_router(node)
        role: Role = "head" if head else "linear"
        form = self.form_if(not router, name, role)
        if router:
            self._narrow_parts(node)
        if bias is not None:
            self.linear_bytes += self.plain_bytes(str(bias.name))
        if form is None:
            self.linear_bytes += self.plain_bytes(name)
            inputs = [x, weight, bias] if bias is not None else [x, weight]
            self.replace(node, ir.Node(DOMAIN, "Logits" if head or router else "Linear", inputs))
            return
        quantised = self.quantise(name, role, form)
        self.linear_bytes += quantised.nbytes
        packed: list[ir.Value | None] = [x, self.store.packed(name, quantised)]
        if bias is not None:
            packed += [None, bias]
        kind = "QuantLogits" if head else "QuantMatMul"
        self.replace(node, ir.Node(DOMAIN, kind, packed, quantised_attributes(quantised)))

    def _narrow_parts(self, router: ir.Node) -> None:
        """A router gives float32; what else is multiplied with it goes on in 16 bits."""
        for split in [use.node for use in router.outputs[0].uses()]:
            for part in split.outputs if split.op_type == "Split" else ():
                readers = [use for use in part.uses() if use.node.op_type != "Experts"]
                if readers:
                    cast = ir.Node("", "Cast", [part], [ir.AttrInt64("to", ir.DataType.FLOAT)])
                    cast.outputs[0].name = f"{part.name}.narrow"
                    cast.outputs[0].type, cast.outputs[0].shape = part.type, part.shape
                    for reader, index in readers:
                        reader.replace_input_with(index, cast.outputs[0])
                    self.graph.insert_after(split, cast)
                    self.narrowed.add(cast.outputs[0].name)

    def _experts(self, node: ir.Node) -> None:
        """Both weights in integers where gate, up and down of one expert are whole blocks, else both in 16 bits."""
        experts = node.attributes["experts"].as_int()
        names = [str(weight.name) for weight in node.inputs[2:4] if weight is not None]
        heights = [self.store.source(name).shape[0] // experts for name in names]
        whole = heights[0] % (2 * BLOCK_ROWS) == 0 and heights[1] % BLOCK_ROWS == 0
        forms = [self.form_if(whole, name, "linear") for name in names]
        chosen = [form for form in forms if form is not None]
        if len(chosen) < len(forms):
            self.linear_bytes += sum(of_a_token(node, self.plain_bytes(name)) for name in names)
            return
        inputs, attributes = list(node.inputs[:2]), dict(node.attributes)
        for prefix, name, form in zip(("gate_up_", "down_"), names, chosen, strict=True):
            quantised = self.quantise(name, "linear", form)
            inputs.append(self.store.packed(name, quantised))
            attributes |= {one.name: one for one in quantised_attributes(quantised, prefix)}
            self.linear_bytes += of_a_token(node, quantised.nbytes)
        self.replace(node, ir.Node(DOMAIN, "Experts", inputs, attributes.values()))


def _quantise_caches(graph: ir.Graph) -> None:
    """Caches become codes of 8 bits, and each gets scales in float32, by token and head."""
    for node in graph:
        if node.op_type != "PagedAttention":
            continue
        node.resize_inputs(_SCALES_END)
        node.resize_outputs(len(_CACHES) * 2 + 1)
        for cache, result, scale, scale_result in _CACHES:
            source, target = node.inputs[cache], node.outputs[result]
            if source is None or source.shape is None:
                raise ValueError("a cache of a lowered graph has no shape")
            source.type = target.type = ir.TensorType(ir.DataType.INT8)
            name, output = scale_names(str(source.name), str(target.name))
            shape, kind = ir.Shape(list(source.shape)[:3]), ir.TensorType(ir.DataType.FLOAT)
            scales = ir.Value(name=name, shape=shape, type=kind)
            graph.inputs.append(scales)
            node.replace_input_with(scale, scales)
            kept = node.outputs[scale_result]
            kept.name, kept.shape, kept.type = output, ir.Shape(list(shape)), kind
            graph.outputs.append(kept)


def _fuse_activation(graph: ir.Graph, node: ir.Node) -> None:
    """Multiply the gate where its product is made."""
    source = node.inputs[0]
    if source is None or only_use(source) is not node:
        return
    product = producer(source, "Linear", DOMAIN) or producer(source, "QuantMatMul", DOMAIN)
    if product is None:
        return
    rows = product.attributes.get("rows")
    if rows is None or rows.as_int() % (2 * BLOCK_ROWS) == 0:  # gate and up each begin with a block
        _activate(graph, node, product)


def _activate(graph: ir.Graph, node: ir.Node, product: ir.Node) -> None:
    """Have `product` do what `node` does to it."""
    product.attributes.add(ir.AttrString("activation", node.attributes["activation"].as_string()))
    output = product.outputs[0]
    output.shape = node.outputs[0].shape
    ir.convenience.replace_all_uses_with(node.outputs[0], output)
    graph.remove(node, safe=True)
