"""Values of buffers that a model on the meta device has lost: inverse frequencies, embedding scales."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import PreTrainedModel


def rebuilt(model: PreTrainedModel, module: nn.Module) -> nn.Module:
    """A shallow copy of one module whose own buffers are on the CPU with the values its model gives them.

    The model's `_init_weights` fills them, as it does when transformers loads a checkpoint without them. A
    floating-point buffer that it leaves alone is filled with NaN, so that `lost` can tell.
    """
    twin = copy.copy(module)
    twin._buffers = {name: None if buffer is None else _blank(buffer) for name, buffer in module._buffers.items()}
    twin._modules = {}
    with torch.no_grad():
        model._init_weights(twin)
    return twin


def values(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """All buffers of the model by name, rebuilt on the CPU."""
    result = {}
    for path, module in model.named_modules():
        if module._buffers:
            for name, buffer in rebuilt(model, module)._buffers.items():
                if buffer is not None:
                    result[f"{path}.{name}" if path else name] = buffer
    return result


def lost(buffer: torch.Tensor) -> bool:
    """Whether nothing gave this rebuilt buffer a value."""
    return buffer.is_floating_point() and bool(buffer.isnan().any())


def _blank(buffer: torch.Tensor) -> torch.Tensor:
    if buffer.is_floating_point():
        return torch.full(buffer.shape, torch.nan, dtype=buffer.dtype)
    return torch.zeros(buffer.shape, dtype=buffer.dtype)
