"""GatedActivation: activation(gate) * up, where each row of x holds gate | up."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import activate
from ops.triton.dependent import let_next_start, wait_for_previous


@triton.jit
def gated_activation_kernel(x, y, columns, ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, 2 * columns], y [rows, columns]; grid (rows, ceil(columns / BLOCK))."""
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gate = tl.load(x + row * 2 * columns + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + at, (activate(gate, ACTIVATION) * up).to(y.dtype.element_ty), mask=inside)
