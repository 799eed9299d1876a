"""Attention becomes PagedAttention: RoPE, per-head norms and the packed q | k | v move into the operator."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from export.capture.captured import CapturedModel, LayerCache
from export.capture.schemas import CAPTURE_DOMAIN
from export.passes.base import (
    Pass,
    add_node,
    add_ortolan,
    dims,
    integers,
    only_use,
    producer,
    replace,
    squeezed,
    unsqueezed,
)
from ops.errors import UnsupportedModel
from ops.schema import DOMAIN


@dataclass
class _Heads:
    """Where q, k or v comes from: `rows` [1, T, heads * dim] and the per-head norm on the way, if any."""

    rows: ir.Value
    norm: ir.Value | None = None
    epsilon: float | None = None


class FusePagedAttention(Pass):
    """Works on the graph whose inputs for cache and step are there already (see `capture.step_inputs`)."""

    def run(self, captured: CapturedModel) -> int:
        caches = {cache.layer: cache for cache in captured.caches}
        nodes = [node for node in captured.graph if node.domain == CAPTURE_DOMAIN and node.op_type == "Attention"]
        for node in nodes:
            _fuse(captured, node, caches[node.attributes["layer"].as_int()])
        return len(nodes)


def _fuse(captured: CapturedModel, node: ir.Node, cache: LayerCache) -> None:
    q, k, v = node.inputs[:3]
    rotary = producer(q, "Rotary", CAPTURE_DOMAIN)
    attributes = {name: node.attributes[name] for name in ("heads", "kv_heads", "scale", "softcap")}
    attributes["window"] = ir.AttrInt64("window", captured.cache_groups[cache.group].window)
    table = None
    if rotary is not None and k is rotary.outputs[1] and q is rotary.outputs[0]:
        q, k, table = rotary.inputs[0], rotary.inputs[1], _table(captured, rotary)
        attributes["rotary_dims"] = ir.AttrInt64("rotary_dims", int(table.shape[1]))
        attributes["interleaved"] = rotary.attributes["interleaved"]
    query, key = _heads(captured, node, q, True), _heads(captured, node, k, True)
    if query.epsilon != key.epsilon and None not in (query.epsilon, key.epsilon):
        query, key = _heads(captured, node, q, False), _heads(captured, node, k, False)
    value = _heads(captured, node, v, False)
    epsilon = query.epsilon if query.epsilon is not None else key.epsilon
    if epsilon is not None:
        attributes["norm_epsilon"] = ir.AttrFloat32("norm_epsilon", epsilon)
    inputs = {str(entry.name): entry for entry in captured.graph.inputs}
    tokens = (dims(query.rows) or ())[1]
    k_cache, v_cache = (inputs[name] for name in cache.inputs)
    result, k_out, v_out = add_ortolan(
        captured,
        node,
        "PagedAttention",
        [
            *_packed_or_apart(captured, node, query.rows, key.rows, value.rows),
            k_cache,
            v_cache,
            inputs[f"block_tables.{cache.group}"],
            inputs[f"slot_mapping.{cache.group}"],
            inputs["query_start"],
            inputs["seq_lens"],
            inputs["positions"],
            inputs["plan"],
            table,
            query.norm,
            key.norm,
            node.inputs[3] if len(node.inputs) > 3 else None,
        ],
        [(tokens, node.attributes["heads"].as_int() * cache.v_dim), dims(k_cache) or (), dims(v_cache) or ()],
        attributes,
    )
    for output, name in zip((k_out, v_out), cache.outputs, strict=True):
        output.name = name
    captured.graph.outputs.extend((k_out, v_out))
    _replace_result(captured, node, result)


def _packed_or_apart(
    captured: CapturedModel, node: ir.Node, q: ir.Value, k: ir.Value, v: ir.Value
) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
    """q | k | v in one value where one linear gave them side by side, else three values."""
    split = producer(q, "Split")
    if split is not None and list(split.outputs) == [q, k, v] and split.inputs[0] is not None:
        return squeezed(captured, node, split.inputs[0]), None, None
    return squeezed(captured, node, q), squeezed(captured, node, k), squeezed(captured, node, v)


def _heads(captured: CapturedModel, before: ir.Node, value: ir.Value | None, take_norm: bool) -> _Heads:
    """Walk back from [1, heads, T, dim] to rows, over a Transpose, a norm of each head and a Reshape."""
    found = _Heads(_known(value))
    if take_norm:
        _take_norm(captured, found)
    turn = producer(found.rows, "Transpose")
    if turn is not None and tuple(turn.attributes["perm"].as_ints()) == (0, 2, 1, 3):
        found.rows = _known(turn.inputs[0])
    else:
        _, heads, tokens, width = dims(found.rows) or ()
        (found.rows,) = add_node(
            captured, before, "Transpose", [found.rows], [(1, tokens, heads, width)], {"perm": [0, 2, 1, 3]}
        )
    if take_norm and found.norm is None:
        _take_norm(captured, found)
    _, tokens, heads, width = dims(found.rows) or ()
    flat = int(heads) * int(width)  # type: ignore[arg-type]
    view = producer(found.rows, "Reshape")
    if view is not None and dims(view.inputs[0]) == (1, tokens, flat):
        found.rows = _known(view.inputs[0])
    else:
        shape = integers(captured, [1, -1, flat])
        (found.rows,) = add_node(captured, before, "Reshape", [found.rows, shape], [(1, tokens, flat)])
    return found


def _take_norm(captured: CapturedModel, found: _Heads) -> None:
    norm = producer(found.rows, "RMSNorm", DOMAIN)
    if norm is None or captured.weight_of(norm.inputs[1]) is None or only_use(norm.outputs[0]) is None:
        return
    found.norm, found.epsilon = norm.inputs[1], norm.attributes["epsilon"].as_float()
    found.rows = _known(norm.inputs[0])


def _table(captured: CapturedModel, rotary: ir.Node) -> ir.Value:
    """The initialiser of the rotary table whose rows a Rotary node is given."""
    cos, sin = rotary.inputs[2:4]
    lookup = producer(cos, "RopeLookup", CAPTURE_DOMAIN)
    if lookup is None or sin is None or sin.producer() is not lookup:
        raise UnsupportedModel(
            "The model changes its rotary embedding between table and use.",
            remedy="Use a model of a supported family.",
        )
    name = lookup.attributes["table"].as_string()
    return captured.add_constant(name, captured.tables[name])


def _replace_result(captured: CapturedModel, node: ir.Node, result: ir.Value) -> None:
    """Put rows [T, heads * v_dim] in the place of [1, T, heads, v_dim], which readers reshape to [1, T, ...]."""
    old = node.outputs[0]
    flat = (1, *(dims(result) or ()))
    rows = unsqueezed(captured, node, result)
    for use in list(old.uses()):
        if use.node.op_type == "Reshape" and dims(use.node.outputs[0]) == flat:
            replace(use.node.outputs[0], rows)
    if old.uses():
        shape = integers(captured, [1, -1, *(int(dim) for dim in (dims(old) or ())[2:])])  # type: ignore[arg-type]
        replace(old, add_node(captured, node, "Reshape", [rows, shape], [dims(old) or ()])[0])


def _known(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise ValueError("a node lacks an input that its operator requires")
    return value
