"""What the kernel cases share: tensors on the device, poisoned outputs, and a bound from the type's precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

#: Half the distance between neighbouring numbers, as a share of their size.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def tensor(array: Any, device: str, dtype: str | None = None) -> torch.Tensor:
    found = torch.from_numpy(np.ascontiguousarray(array))
    return (found if dtype is None else found.to(getattr(torch, dtype))).to(device)


def poisoned(shape: tuple[int, ...], device: str, dtype: str) -> torch.Tensor:
    """An output full of NaN, so that what a kernel leaves out shows."""
    return torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device=device)


def parts_of(grid: tuple[int, int, int], size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the parts of a grid's programs, of `size` numbers each and full of NaN, and their counters."""
    tiles = grid[0] * grid[2]
    partial = poisoned((tiles, grid[1], size), device, "float32")
    return partial, torch.zeros(tiles, dtype=torch.int32, device=device)


def norms_around(device: str, dtype: str, **given: Any) -> tuple[Any, ...]:
    """What a product takes of the norms around it, from squares to epsilon; what is not given is not read."""
    nothing = torch.empty(0, dtype=getattr(torch, dtype), device=device)
    known = {"squares": torch.empty(0, device=device), "tiles": 0, "unit": torch.empty(0, device=device)}
    known |= {"residual": nothing, "gain": nothing, "total": nothing, "epsilon": 0.0} | given
    return tuple(known[name] for name in ("squares", "tiles", "residual", "gain", "unit", "total", "epsilon"))


def wide(x: torch.Tensor) -> NDArray[np.float64]:
    return x.detach().cpu().to(torch.float64).numpy()


def rounded(array: Any, dtype: str) -> NDArray[np.float64]:
    """Values as the type holds them."""
    return wide(tensor(array, "cpu", dtype))


def check(found: torch.Tensor, expected: Any, reach: Any, dtype: str) -> None:
    """found is within one rounding of the result and of `reach`, the sum of magnitudes that went into it."""
    error = np.abs(wide(found) - expected)
    bound = 2 * UNIT[dtype] * (np.abs(expected) + np.asarray(reach)) + 1e-6
    assert np.isfinite(wide(found)).all()
    worst = np.unravel_index(int(np.argmax(error - bound)), error.shape)
    assert (error <= bound).all(), f"off by {error[worst]:.3g} at {worst}, {bound[worst]:.3g} allowed"
