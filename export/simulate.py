"""Simulates in torch the rounding that a quantised graph's kernels do besides that of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from export.lowering import LoweredModel

INTERFACE = "ortolan_rounded_cache"
CODED = "ortolan_coded_cache"
_HALF = "float16"


@contextmanager
def rounding(model: PreTrainedModel, lowered: LoweredModel, *, activations: bool) -> Iterator[None]:
    """While it lasts, `model` rounds keys and values to the type of its cache and, with `activations`, the input of
    each linear that `lowered` keeps in integers and what its experts' weights in integers multiply."""
    rounded = lowered.quantised if activations else ()
    groups = {
        parameter: weight.quantised.form.group
        for weight in rounded
        if weight.role == "linear"
        for parameter in weight.parameters
    }
    hooks = [
        module.register_forward_pre_hook(_round_input(groups[f"{path}.weight"]))
        for path, module in model.named_modules()
        if f"{path}.weight" in groups
    ]
    hooks += [
        model.get_output_embeddings().register_forward_pre_hook(_round_input(weight.quantised.form.group))
        for weight in rounded
        if weight.role == "head"
    ]
    mixtures = [
        (module, groups.get(f"{path}.gate_up_proj"), groups.get(f"{path}.down_proj"))
        for path, module in model.named_modules()
        if {f"{path}.gate_up_proj", f"{path}.down_proj"} & groups.keys()
    ]
    for module, outer, inner in mixtures:
        module.forward = partial(_experts, module, outer, inner)
    half = any(cache.dtype == _HALF for cache in lowered.cache_tensors)
    before = model.config._attn_implementation
    if half:
        AttentionInterface.register(INTERFACE, partial(_attention, _halved))
        model.set_attn_implementation(INTERFACE)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, _, _ in mixtures:
            del module.forward
        if half:
            model.set_attn_implementation(before)


def round_activations(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [..., K] with each group of columns of each row rounded to int8: scale absmax / 127, ties to even."""
    width = x.shape[-1]
    padded = nn.functional.pad(x, (0, -width % group))
    groups = padded.reshape(*x.shape[:-1], -1, group)
    scale = groups.abs().amax(dim=-1, keepdim=True) / 127
    codes = torch.where(scale > 0, (groups / scale).round(), torch.zeros_like(groups))
    return (codes * scale).reshape(*x.shape[:-1], -1)[..., :width]


def _round_input(group: int) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (round_activations(arguments[0], group), *arguments[1:])

    return hook


def _experts(
    module: nn.Module,
    outer: int | None,
    inner: int | None,
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """The sum of what the chosen experts give [T, H]; outer, inner: groups in which rows are rounded before gate
    and up and before down, None where these are no integers."""
    total = torch.zeros_like(x)
    rounded = x if outer is None else round_activations(x, outer)
    for expert in chosen.unique().tolist():
        rows, ranks = torch.where(chosen == expert)
        gate, up = (rounded[rows] @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
        active = module.act_fn(gate) * up
        active = active if inner is None else round_activations(active, inner)
        total.index_add_(0, rows, active @ module.down_proj[expert].T * weights[rows, ranks, None])
    return total


def code_cache(model: PreTrainedModel) -> None:
    """Have `model` attend to keys and values as a cache of int8 gives them back, from now on."""
    AttentionInterface.register(CODED, partial(_attention, _coded))
    model.set_attn_implementation(CODED)


def _halved(values: torch.Tensor) -> torch.Tensor:
    """As a float16 cache gives them back."""
    return values.to(torch.float16).to(values.dtype)


def _coded(values: torch.Tensor) -> torch.Tensor:
    """As a cache of int8 does, with a scale for each token and head (ops.reference.paged_attention)."""
    wide = values.to(torch.float32)
    scales = wide.abs().amax(dim=-1, keepdim=True) / 127
    codes = torch.floor(wide / torch.where(scales > 0, scales, 1.0) + 0.5)
    return (codes * scales).to(values.dtype)


def _attention(
    kept: Callable[[torch.Tensor], torch.Tensor],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention [1, heads, T, D] over keys and values as `kept` gives them back. s_aux: sinks [heads]."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (kept(tensor).repeat_interleave(repeats, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])[None]
    hidden = (distance < 0) | (distance >= (sliding_window or key.shape[2]))
    scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), None
