"""Torch operators that stand for whole modules while a model is traced, and their translation to ONNX nodes.

They compute nothing: a trace on the meta device needs their shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxscript
import torch

from export.capture.schemas import CAPTURE_DOMAIN
from ops.schema import DOMAIN, VERSION

_LIBRARY = torch.library.Library("ortolan", "DEF")
_ORTOLAN = onnxscript.values.Opset(DOMAIN, VERSION)
_CAPTURE = onnxscript.values.Opset(CAPTURE_DOMAIN, VERSION)


def _define(signature: str, shape: Callable[..., Any]) -> Any:
    """Define ortolan::<signature> whose only implementation gives empty tensors of the right shape."""
    name = signature.split("(", 1)[0]
    _LIBRARY.define(signature)
    torch.library.register_fake(f"ortolan::{name}", shape, lib=_LIBRARY)
    return getattr(torch.ops.ortolan, name)


def _linear_shape(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _rotary_shape(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _lookup_shape(positions: torch.Tensor, table: str, rotary_dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*positions.shape, rotary_dims)
    return (
        positions.new_empty(shape, dtype=torch.float32),
        positions.new_empty(shape, dtype=torch.float32),
    )


def _attention_shape(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, *attributes: object
) -> torch.Tensor:
    return q.new_empty((1, q.shape[2], q.shape[1], v.shape[3]))


def _route_shape(
    logits: torch.Tensor, top_k: int, normalise: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*logits.shape[:-1], top_k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape)


linear = _define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _linear_shape)
rms_norm = _define(
    "rms_norm(Tensor x, Tensor weight, float epsilon) -> Tensor", lambda x, weight, epsilon: torch.empty_like(x)
)
rope_lookup = _define(
    "rope_lookup(Tensor positions, str table, int rotary_dims) -> (Tensor, Tensor)", _lookup_shape
)
rotary = _define(
    "rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, int interleaved) -> (Tensor, Tensor)", _rotary_shape
)
attention = _define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, int layer, int heads, int kv_heads, int head_dim, "
    "int v_dim, float scale, int window, float softcap) -> Tensor",
    _attention_shape,
)

route = _define(
    "route(Tensor logits, int top_k, int normalise, float scale) -> (Tensor, Tensor)",
    _route_shape,
)
chosen_experts = _define(
    "chosen_experts(Tensor x, Tensor chosen, Tensor weights, Tensor gate_up, Tensor down, str activation) "
    "-> Tensor",
    lambda x, *others: torch.empty_like(x),
)


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch.onnx.export: what each operator becomes. The schemas must be registered first."""

    def onnx_attention(  # type: ignore[no-untyped-def]
        q, k, v, sinks, layer, heads, kv_heads, head_dim, v_dim, scale, window, softcap
    ):
        return _CAPTURE.Attention(
            q,
            k,
            v,
            sinks,
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_dim=v_dim,
            scale=scale,
            window=window,
            softcap=softcap,
        )

    return {
        linear.default: lambda x, weight, bias: _ORTOLAN.Linear(x, weight, bias),
        rms_norm.default: lambda x, weight, epsilon: _ORTOLAN.RMSNorm(x, weight, epsilon=epsilon),
        rope_lookup.default: lambda positions, table, rotary_dims: _CAPTURE.RopeLookup(
            positions, table=table, rotary_dims=rotary_dims
        ),
        rotary.default: lambda q, k, cos, sin, interleaved: _CAPTURE.Rotary(
            q, k, cos, sin, interleaved=interleaved
        ),
        attention.default: onnx_attention,
        route.default: lambda logits, top_k, normalise, scale: _CAPTURE.Route(
            logits, top_k=top_k, normalise=normalise, scale=scale
        ),
        chosen_experts.default: lambda x, chosen, weights, gate_up, down, activation: _CAPTURE.ChosenExperts(
            x, chosen, weights, gate_up, down, activation=activation
        ),
    }
