"""Rows of keys and values as an int8 cache keeps them: codes, and a float32 scale for each token and head.

A code is value / scale rounded to the nearest, of halves up, and the scale the largest magnitude over 127: a number
is off by at most half a scale.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def coded(value):
    """Codes int8 [n, D] and scales float32 [n] of float32 rows; what a row does not fill is 0."""
    scale = tl.max(tl.abs(value), axis=1) / 127.0
    # Of a row of zeros codes and scale are 0.
    inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
    return tl.floor(value * inverse[:, None] + 0.5).to(tl.int8), scale


@triton.jit
def store_rows(cache, scales, place, value, row_inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write rows float32 [n, BLOCK_D], of DIM numbers each, to the places [n] of a cache, and give them back as it
    holds them: float32, whatever the cache's type.
    """
    dim = tl.arange(0, BLOCK_D)[None, :]
    target = cache + place[:, None] * DIM + dim
    inside = row_inside[:, None] & (dim < DIM)
    if cache.dtype.element_ty == tl.int8:
        codes, scale = coded(value)
        tl.store(scales + place, scale, mask=row_inside)
        tl.store(target, codes, mask=inside)
        kept = codes.to(tl.float32) * scale[:, None]
    else:
        rounded = value.to(cache.dtype.element_ty)
        tl.store(target, rounded, mask=inside)
        kept = rounded.to(tl.float32)
    return kept
