"""Adds the inputs of a step and of its cache to a captured graph, and sorts layers into cache groups."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.capture.captured import CapturedModel, LayerCache
from export.capture.schemas import CAPTURE_DOMAIN
from rtcore.manifest import CacheGroup

_INT32, _INT64, _FLOAT = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT


def add_step_inputs(captured: CapturedModel) -> None:
    """Give the graph exactly the inputs of a step, in their order, then the cache tensors of each layer.

    Layers of one window and one shape form a group. A window that no sequence within the context length can
    outgrow is none.
    """
    forms: dict[tuple[int, int, int, int], int] = {}
    caches = []
    for node in captured.graph:
        if node.domain != CAPTURE_DOMAIN or node.op_type != "Attention":
            continue
        layer, kv_heads, head_dim, v_dim, window = (
            node.attributes[name].as_int() for name in ("layer", "kv_heads", "head_dim", "v_dim", "window")
        )
        if window >= captured.dimensions.context_length:
            window = 0
        group = forms.setdefault((window, kv_heads, head_dim, v_dim), len(forms))
        caches.append(LayerCache(layer, group, kv_heads, head_dim, v_dim))
    captured.caches = tuple(sorted(caches, key=lambda cache: cache.layer))
    captured.cache_groups = tuple(CacheGroup(window=form[0]) for form in forms)
    _declare(captured)


def _declare(captured: CapturedModel) -> None:
    traced = {str(value.name): value for value in captured.graph.inputs}
    groups = range(len(captured.cache_groups))
    inputs = [
        traced["input_ids"],
        traced["positions"],
        _value("query_start", _INT32, ["R_plus_1"]),
        _value("seq_lens", _INT32, ["R"]),
        traced["logit_rows"],
        *(_value(f"block_tables.{group}", _INT32, ["R", f"M_{group}"]) for group in groups),
        *(_value(f"slot_mapping.{group}", _INT32, ["T"]) for group in groups),
        _value("plan", _INT32, [6]),
    ]
    for cache in captured.caches:
        for name, width in zip(cache.inputs, (cache.head_dim, cache.v_dim), strict=True):
            blocks = f"B_{cache.group}"
            inputs.append(_value(name, _FLOAT, [blocks, "block_size", cache.kv_heads, width]))
    captured.graph.inputs.clear()
    captured.graph.inputs.extend(inputs)
    captured.graph.outputs[0].name = "logits"


def _value(name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
