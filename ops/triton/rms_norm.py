"""RMSNorm and AddRMSNorm: one program a row, which it keeps in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.dependent import let_next_start, wait_for_previous

#: Rows up to which the next kernel, a product, starts before the norm is known: its weights are what takes time.
#: With more rows the product's programs would take room from the kernels before.
_EARLY_ROWS = tl.constexpr(16)


@triton.jit
def rms_norm_kernel(x, weight, y, columns, epsilon, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """y = x / sqrt(mean(x^2) + epsilon) * weight; x and y [rows, columns], columns <= BLOCK; grid (rows)."""
    if tl.num_programs(0) <= _EARLY_ROWS:
        let_next_start(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    let_next_start(DEPENDENT)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + epsilon)
    tl.store(y + row + at, (value * scale * gain).to(y.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x, residual, weight, y, total, columns, epsilon, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr
):
    """total = x + residual, rounded to its type as the next layer reads it; y is the norm of total."""
    if tl.num_programs(0) <= _EARLY_ROWS:
        let_next_start(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
    rounded = value.to(total.dtype.element_ty)
    tl.store(total + row + at, rounded, mask=inside)
    value = rounded.to(tl.float32)
    let_next_start(DEPENDENT)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + epsilon)
    tl.store(y + row + at, (value * scale * gain).to(y.dtype.element_ty), mask=inside)
