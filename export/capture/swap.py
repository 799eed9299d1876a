"""Swaps the modules of a model on the meta device for single operators, so that a trace is short and semantic."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation, PytorchGELUTanh
from transformers.pytorch_utils import Conv1D

from export.capture import operators
from export.capture.buffers import rebuilt
from export.capture.probe import half_tables, probe_norm, probe_rotary
from export.capture.probe_experts import RouterForm, probe_experts, probe_router

PROBE_POSITIONS = 5


class Swapper:
    """Swaps what it recognises in a model and remembers what the graph must be told about it.

    tables: rotary tables by name, as functions from positions [n] to cos | sin [n, rotary_dims].
    offsets: what is added to a weight, by name.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.tables: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self.offsets: dict[str, float] = {}

    def swap(self) -> None:
        """Replace the `forward` of linears, RMS norms, rotary modules, routers, experts and GPT-2's GELU."""
        forms: dict[Any, Any] = {}
        for path, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                _replace(module, _linear)
            elif isinstance(module, Conv1D):
                _replace(module, _conv1d)
            elif isinstance(module, (NewGELUActivation, PytorchGELUTanh)):
                _replace(module, _gelu_tanh)
            elif "RotaryEmbedding" in type(module).__name__:
                self._swap_rotary(path, module)
            elif (router := probe_router(module)) is not None:
                _replace(module, _router(router))
            elif (activation := probe_experts(module)) is not None:
                _replace(module, _experts(activation))
            elif not module._modules and len(module._parameters) == 1:
                known = (type(module), tuple(sorted((k, v) for k, v in vars(module).items() if _plain(v))))
                if known not in forms:
                    forms[known] = probe_norm(module)
                if forms[known] is not None:
                    _replace(module, _rms_norm(forms[known].epsilon))
                    if forms[known].offset:
                        self.offsets[f"{path}.weight"] = forms[known].offset

    def _swap_rotary(self, path: str, module: nn.Module) -> None:
        real = rebuilt(self.model, module)

        def angles(positions: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad(), torch.device("cpu"):
                cos, sin = type(module).forward(real, torch.zeros(1), positions[None], *arguments)
            return cos, sin

        def forward(
            self_: nn.Module, x: torch.Tensor, position_ids: torch.Tensor, *arguments: Any, **named: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            arguments = (*arguments, *named.values())
            name = ".".join(("rope", path, *map(str, arguments)))
            self.tables[name] = lambda positions: half_tables(*angles(positions, *arguments))
            dims = angles(torch.arange(1), *arguments)[0].shape[2]
            cos, sin = operators.rope_lookup(position_ids, name, dims)
            return cos, sin

        _replace(module, forward)
        self._angles = angles

    @contextmanager
    def patched_rotary(self) -> Iterator[None]:
        """While a trace runs, the modelling file's own `apply_rotary_pos_emb` is one operator, if it is one."""
        namespace = vars(sys.modules[type(self.model).__module__])
        original = namespace.get("apply_rotary_pos_emb")
        if original is None or not hasattr(self, "_angles"):
            yield
            return
        layer_types = sorted(set(getattr(self.model.config, "layer_types", None) or ()))
        positions = torch.arange(PROBE_POSITIONS)
        try:
            cos, sin = self._angles(positions)
        except TypeError:
            cos, sin = self._angles(positions, layer_types[0])
        form = probe_rotary(original, cos, sin)
        if form is None:
            yield
            return

        def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
            return operators.rotary(q, k, cos, sin, int(form.interleaved))

        namespace["apply_rotary_pos_emb"] = apply
        try:
            yield
        finally:
            namespace["apply_rotary_pos_emb"] = original


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = types.MethodType(forward, module)


def _plain(value: object) -> bool:
    return isinstance(value, (int, float, str, bool))


def _linear(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return operators.linear(x, self.weight, self.bias)


def _conv1d(self: Conv1D, x: torch.Tensor) -> torch.Tensor:
    """The weight is [K, N]: a transpose in the graph is folded into the weight when it is imported."""
    return operators.linear(x, self.weight.T, self.bias)


def _gelu_tanh(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x, approximate="tanh")


def _router(form: RouterForm) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    def forward(self: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = operators.linear(x, self.weight, None)
        chosen, weights = operators.route(logits, form.top_k, int(form.normalise), form.scale)
        return logits, weights, chosen

    return forward


def _experts(activation: str) -> Callable[..., torch.Tensor]:
    def forward(self: nn.Module, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return operators.chosen_experts(x, chosen, weights, self.gate_up_proj, self.down_proj, activation)

    return forward


def _rms_norm(epsilon: float) -> Callable[..., torch.Tensor]:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return operators.rms_norm(x, self.weight, epsilon)

    return forward
