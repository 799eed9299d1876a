"""Numerical probes of mixtures of experts: how a router weighs, and what the experts of a module compute."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from export.capture.probe import TOLERANCE

#: A small module of experts for the probe.
_EXPERTS, _INNER, _HIDDEN = 3, 5, 7

#: By the names of GatedActivation.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class RouterForm:
    """The attributes of Experts that say how rows are routed."""

    top_k: int
    normalise: bool
    scale: float


def probe_router(module: nn.Module) -> RouterForm | None:
    """The form of a router: one matrix, and a forward from rows to (logits, weights, experts); None when it is
    something else."""
    weight, top_k = module._parameters.get("weight"), getattr(module, "top_k", None)
    if weight is None or weight.dim() != 2 or len(module._parameters) != 1 or not isinstance(top_k, int):
        return None
    if module._buffers or module._modules:
        return None
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6, weight.shape[1], generator=generator)
    rows = torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5
    found = _run(module, {"weight": rows}, x)
    if not isinstance(found, tuple) or len(found) != 3:
        return None
    logits, weights, chosen = found
    best = logits.softmax(dim=-1).topk(top_k, dim=-1)
    if not torch.allclose(logits, x @ rows.T, atol=TOLERANCE) or not torch.equal(chosen, best.indices):
        return None
    for normalise in (False, True):
        expected = best.values / best.values.sum(dim=-1, keepdim=True) if normalise else best.values
        scale = _nearest_one(float((weights / expected).median()))
        if torch.allclose(weights, expected * scale, atol=TOLERANCE):
            return RouterForm(top_k, normalise, scale)
    return None


def probe_experts(module: nn.Module) -> str | None:
    """The activation of a module of gated experts (gate_up_proj [experts, gate | up, hidden], down_proj), None
    when it computes something else."""
    if set(module._parameters) != {"gate_up_proj", "down_proj"} or module._buffers:
        return None
    generator = torch.Generator().manual_seed(5)
    gate_up = torch.randn(_EXPERTS, 2 * _INNER, _HIDDEN, generator=generator)
    down = torch.randn(_EXPERTS, _HIDDEN, _INNER, generator=generator)
    x = torch.randn(4, _HIDDEN, generator=generator)
    chosen = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]])
    weights = torch.rand(4, 2, generator=generator)
    found = _run(module, {"gate_up_proj": gate_up, "down_proj": down}, x, chosen, weights)
    if not isinstance(found, torch.Tensor):
        return None
    gate, up = (gate_up[chosen] @ x[:, None, :, None]).squeeze(-1).chunk(2, dim=-1)
    for name, activate in ACTIVATIONS.items():
        inner = activate(gate) * up
        expected = ((down[chosen] @ inner[..., None]).squeeze(-1) * weights[..., None]).sum(dim=1)
        if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=TOLERANCE):
            return name
    return None


def _run(module: nn.Module, parameters: dict[str, torch.Tensor], *arguments: torch.Tensor) -> Any:
    """What the module's own forward gives with other parameters, None where these do not fit it."""
    twin = copy.copy(module)
    twin._parameters = {name: nn.Parameter(value, requires_grad=False) for name, value in parameters.items()}
    if hasattr(twin, "num_experts") and "gate_up_proj" in parameters:
        twin.num_experts = _EXPERTS
    try:
        with torch.no_grad():
            # transformers wraps the forward of experts to choose between implementations.
            return inspect.unwrap(type(module).forward)(twin, *arguments)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _nearest_one(scale: float) -> float:
    return 1.0 if abs(scale - 1.0) < TOLERANCE else scale
