"""capture: from the content of config.json to a CapturedModel."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import onnxscript.optimizer
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from export.capture import buffers
from export.capture.captured import CapturedModel, is_head, of_a_token
from export.capture.quiet import quiet
from export.capture.schemas import CAPTURE_DOMAIN
from export.capture.step_inputs import add_step_inputs
from export.capture.swap import Swapper
from export.capture.trace import meta_model, trace
from export.parameters import Parameter
from export.passes import run_passes
from export.sources import Affine, Transposed
from export.tensors import RowSource, matrix_shape
from models.registry import family_of
from ops.errors import ConfigError, UnsupportedModel
from ops.schema import DOMAIN
from rtcore.manifest import Dimensions


def capture(config: dict[str, Any], context_length: int | None = None) -> CapturedModel:
    """Capture the model that a Hugging Face configuration describes. Reads no weights.

    context_length: tokens of prompt and answer at most, None for what the configuration says; rotary tables
    have that many rows. Raises UnsupportedModel naming what is missing, ConfigError for a context length that
    the model cannot have.
    """
    family = family_of(config)
    parsed = family.parse(config)
    longest = family.context_length(parsed)
    if context_length is not None and not 1 <= context_length <= longest:
        raise ConfigError(
            f"The context length is {context_length}; this model has room for 1 to {longest} tokens.",
            param="context_length",
        )
    length = context_length or longest
    model = meta_model(parsed)
    swapper = Swapper(model)
    swapper.swap()
    graph = trace(model, swapper)
    names = _canonical_names(model)
    captured = CapturedModel(graph, family.name, _dimensions(model, graph, length), aliases=_aliases(names))
    captured.shapes = {name: matrix_shape(tuple(value.shape)) for name, value in model.named_parameters()}
    _fill_constants(model, graph)
    with quiet():
        onnxscript.optimizer.optimize(graph)
    _name_weights(captured, names, swapper)
    captured.tables = {name: _rows(table, length) for name, table in swapper.tables.items()}
    add_step_inputs(captured)
    run_passes(captured)
    graph.graph.outputs[0].name = "logits"
    captured.dimensions = msgspec.structs.replace(
        captured.dimensions, linear_parameters=_linear_parameters(captured), **_experts(captured)
    )
    _check_complete(captured)
    return captured


def _canonical_names(model: PreTrainedModel) -> dict[str, str]:
    """Every parameter name, and the name of the parameter that it shares its content with (itself mostly)."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(value), name) for name, value in model.named_parameters(remove_duplicate=False)
    }


def _aliases(names: dict[str, str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name, canonical in names.items():
        groups[canonical].append(name)
    return {canonical: tuple(group) for canonical, group in groups.items() if len(group) > 1}


def _fill_constants(model: PreTrainedModel, graph: ir.Model) -> None:
    """Give buffers their values and leave parameters without any. Raises UnsupportedModel for a lost buffer."""
    values = buffers.values(model)
    for name, value in graph.graph.initializers.items():
        if name in values:
            if buffers.lost(values[name]):
                raise UnsupportedModel(
                    f"The value of the model's buffer {name} is not known without its weights.",
                    remedy="Use a model of a supported family.",
                )
            value.const_value = ir.tensor(values[name].numpy(), name=name)
        elif value.const_value is not None and value.const_value.__class__.__module__.startswith("torch"):
            value.const_value = None


def _name_weights(captured: CapturedModel, names: dict[str, str], swapper: Swapper) -> None:
    """Give each parameter in the graph its expression; a transpose of one is folded into it."""
    initializers = captured.graph.initializers
    for name, value in list(initializers.items()):
        if name not in names:
            continue
        canonical = names[name]
        source: RowSource = Parameter(canonical, captured.shapes[canonical])
        if offset := swapper.offsets.get(name):
            source = Affine(source, offset=offset)
        if canonical != name and canonical in initializers:
            ir.convenience.replace_all_uses_with(value, initializers[canonical])
            continue
        value.name = canonical
        captured.weights[canonical] = source
        for use in list(value.uses()):
            if use.node.op_type == "Transpose" and len(source.shape) == 2:
                turned = captured.add_weight(f"{canonical}.transposed", Transposed(source))
                ir.convenience.replace_all_uses_with(use.node.outputs[0], turned)


def _rows(table: Callable[[torch.Tensor], torch.Tensor], length: int) -> NDArray[np.float32]:
    with torch.device("cpu"):
        rows: NDArray[np.float32] = table(torch.arange(length)).to(torch.float32).numpy()
    return rows


def _dimensions(model: PreTrainedModel, graph: ir.Model, length: int) -> Dimensions:
    layers = [node for node in graph.graph if node.domain == CAPTURE_DOMAIN and node.op_type == "Attention"]
    if not layers:
        raise UnsupportedModel(
            f"The model type {model.config.model_type!r} has no attention that a paged cache could serve.",
            remedy="Use a decoder-only model of a supported family.",
        )
    widest = max(layers, key=lambda node: node.attributes["heads"].as_int())
    return Dimensions(
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        layers=len(layers),
        heads=widest.attributes["heads"].as_int(),
        kv_heads=widest.attributes["kv_heads"].as_int(),
        head_dim=widest.attributes["head_dim"].as_int(),
        context_length=length,
        parameters=sum(value.numel() for value in model.parameters()),
    )


def _linear_parameters(captured: CapturedModel) -> int:
    """Weights inside the layers that one token is multiplied with: those of linears and of its experts."""
    total = 0
    for node in captured.graph:
        if node.domain != DOMAIN or node.op_type not in ("Linear", "Experts") or is_head(node):
            continue
        sources = [source for source in map(captured.weight_of, node.inputs) if source is not None]
        size = sum(math.prod(source.shape) for source in sources if len(source.shape) == 2)
        total += of_a_token(node, size)
    return total


def _experts(captured: CapturedModel) -> dict[str, int]:
    """Experts of a layer and of a token, of the layer that has most; nothing where no layer is a mixture."""
    layers = [node for node in captured.graph if (node.domain, node.op_type) == (DOMAIN, "Experts")]
    counts = [(node.attributes["experts"].as_int(), node.attributes["top_k"].as_int()) for node in layers]
    return dict(zip(("experts", "experts_per_token"), max(counts), strict=True)) if counts else {}


def _check_complete(captured: CapturedModel) -> None:
    """No node of the capture's own domain may be left over."""
    left = sorted({node.op_type for node in captured.graph if node.domain == CAPTURE_DOMAIN})
    if left:
        raise UnsupportedModel(
            f"The family {captured.family} uses {', '.join(left)} in a form that the operators do not cover.",
            remedy="Use a model of a supported family.",
        )
