"""Numerical probes: what a module or a function of transformers computes, found by running it.

Class names and source text differ from family to family; a probe on random numbers says for sure whether
something is the operator it looks like, and with which constants.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

PROBE_DIMS = 16
TOLERANCE = 1e-5


@dataclass(frozen=True)
class NormForm:
    """x / sqrt(mean(x^2) + epsilon) * (weight + offset)."""

    epsilon: float
    offset: float


@dataclass(frozen=True)
class RotaryForm:
    """Which dims of a head rotary embedding pairs: (2i, 2i + 1) when interleaved, else (i, i + half)."""

    interleaved: bool


def probe_norm(module: nn.Module) -> NormForm | None:
    """The form of an RMSNorm-like module (one weight vector, no buffers), or None when it is something else.

    Epsilon is read off an input so small that it decides the result, then confirmed at ordinary size.
    """
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or len(module._parameters) != 1 or module._buffers or module._modules:
        return None
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, weight.shape[0], generator=generator, dtype=torch.float32)
    try:
        zero = _norm(module, torch.zeros(weight.shape[0]), x)
        one = _norm(module, torch.ones(weight.shape[0]), x)
        tiny = _norm(module, torch.ones(weight.shape[0]), x * 1e-6)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    gain = one - zero
    offset = 1.0 if torch.allclose(zero, gain, atol=TOLERANCE) else 0.0
    ratio = (x * 1e-6).double() * (1.0 + offset) / tiny.double()
    epsilon = float((ratio.square() - (x * 1e-6).double().square().mean(-1, keepdim=True)).median())
    form = NormForm(_nearest_named(module, epsilon), offset)
    gains = torch.randn(weight.shape[0], generator=generator)
    for scale in (1.0, 1e-2):
        expected = torch.nn.functional.rms_norm(x * scale, (weight.shape[0],), gains + offset, form.epsilon)
        if not torch.allclose(_norm(module, gains, x * scale), expected, rtol=1e-4, atol=TOLERANCE):
            return None
    return form


def _norm(module: nn.Module, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    twin = copy.copy(module)
    twin._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    with torch.no_grad():
        return twin(x)


def _nearest_named(module: nn.Module, measured: float) -> float:
    """The module's own attribute that the measured epsilon is a rounding of, else the measured value."""
    for value in vars(module).values():
        if isinstance(value, float) and abs(value - measured) <= 0.02 * abs(value):
            return value
    return measured


def probe_rotary(function: Callable[..., Any], cos: torch.Tensor, sin: torch.Tensor) -> RotaryForm | None:
    """The form of an `apply_rotary_pos_emb(q, k, cos, sin)`, or None when it is something else.

    cos, sin: [1, T, rotary_dims] as the model's own rotary module gives them. Heads wider than rotary_dims are
    tried too: their last dims must pass unchanged.
    """
    generator = torch.Generator().manual_seed(2)
    length, dims = cos.shape[1], cos.shape[2]
    forms = [RotaryForm(False), RotaryForm(True)]
    for width in (dims, dims + PROBE_DIMS):
        q = torch.randn(1, 3, length, width, generator=generator)
        k = torch.randn(1, 2, length, width, generator=generator)
        try:
            turned = function(q, k, cos, sin)
        except (RuntimeError, TypeError, ValueError):
            if width == dims:
                return None
            break
        forms = [
            form
            for form in forms
            if all(
                torch.allclose(actual, _turn(x, cos, sin, form), atol=TOLERANCE)
                for actual, x in zip(turned, (q, k), strict=True)
            )
        ]
    return forms[0] if forms else None


def half_tables(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """cos | sin of one period, [T, rotary_dims], from tables [1, T, rotary_dims] that repeat each angle.

    Raises ValueError when the angles repeat neither by halves nor by pairs.
    """
    half = cos.shape[2] // 2
    for first, second in (
        (slice(0, half), slice(half, None)),
        (slice(0, None, 2), slice(1, None, 2)),
    ):
        if torch.equal(cos[..., first], cos[..., second]) and torch.equal(sin[..., first], sin[..., second]):
            return torch.cat((cos[0, :, first], sin[0, :, first]), dim=-1)
    raise ValueError("the rotary table does not repeat its angles")


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, form: RotaryForm) -> torch.Tensor:
    """Reference rotary embedding of [1, heads, T, width]."""
    table = half_tables(cos, sin)
    half = table.shape[1] // 2
    c, s = table[:, :half], table[:, half:]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = (slice(0, None, 2), slice(1, None, 2)) if form.interleaved else (slice(0, half), slice(half, None))
    result = torch.empty_like(rotated)
    a, b = rotated[..., pairs[0]], rotated[..., pairs[1]]
    result[..., pairs[0]] = a * c - b * s
    result[..., pairs[1]] = b * c + a * s
    return torch.cat((result, rest), dim=-1)
