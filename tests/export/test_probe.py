"""The probes that tell what a module or function of transformers computes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from export.capture.probe import NormForm, RotaryForm, half_tables, probe_norm, probe_rotary

pytestmark = pytest.mark.export


class Norm(nn.Module):
    """An RMS norm with epsilon under any name and an offset."""

    def __init__(self, epsilon: float, offset: float, centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(24))
        self.some_name = epsilon
        self.shift = offset
        self.centred = centred

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.some_name)
        return x * (self.weight + self.shift)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 3e-7])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_epsilon_and_offset_of_a_norm_are_found(epsilon: float, offset: float) -> None:
    assert probe_norm(Norm(epsilon, offset)) == NormForm(epsilon, offset)


def test_other_modules_are_no_rms_norm() -> None:
    assert probe_norm(Norm(1e-6, 0.0, centred=True)) is None
    assert probe_norm(nn.LayerNorm(24)) is None
    assert probe_norm(nn.LayerNorm(24, bias=False)) is None
    assert probe_norm(nn.Embedding(5, 24)) is None


def _angles(dims: int, repeat: str) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = torch.rand(dims // 2, generator=torch.Generator().manual_seed(1))
    angles = torch.arange(5)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1) if repeat == "halves" else angles.repeat_interleave(2, -1)
    return angles.cos()[None], angles.sin()[None]


def _halves(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


@pytest.mark.parametrize(
    ("turn", "repeat", "expected"),
    [(_halves, "halves", RotaryForm(False)), (_pairs, "pairs", RotaryForm(True))],
)
def test_the_pairing_of_rotary_dims_is_found(turn: object, repeat: str, expected: RotaryForm) -> None:
    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cos, sin = cos[:, None], sin[:, None]
        return tuple(x * cos + turn(x) * sin for x in (q, k))  # type: ignore[operator]

    cos, sin = _angles(16, repeat)
    assert probe_rotary(apply, cos, sin) == expected
    assert torch.equal(half_tables(cos, sin)[:, :8], cos[0, :, :8] if repeat == "halves" else cos[0, :, ::2])


def test_another_rotation_is_not_taken_for_rope() -> None:
    def backwards(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cos, sin = cos[:, None], sin[:, None]
        return tuple(x * cos - _halves(x) * sin for x in (q, k))

    assert probe_rotary(backwards, *_angles(16, "halves")) is None


def test_a_table_that_does_not_repeat_is_refused() -> None:
    cos, sin = torch.rand(1, 5, 16), torch.rand(1, 5, 16)
    with pytest.raises(ValueError, match="repeat"):
        half_tables(cos, sin)
