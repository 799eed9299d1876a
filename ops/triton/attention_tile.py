"""What attention of decode and of prefill share: one tile of keys and values, read through the block table."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import tanh

#: The maxima of scores are kept times log2(e), so that exponentials are powers of two.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def raw_score(product, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Products of queries and keys as scores, and what makes a score one to the base 2."""
    factor = scale * LOG2_E
    if HAS_SOFTCAP:
        product = softcap * tanh(product * scale / softcap)
        factor = LOG2_E
    return product, factor


@triton.jit
def _scales(pointers, known, MASKED: tl.constexpr):
    """The scales of keys, 0 of those that are not known."""
    return tl.load(pointers, mask=known, other=0.0) if MASKED else tl.load(pointers)


@triton.jit
def attend_tile(
    query,
    top,
    total,
    result,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    table,
    kv_head,
    key,
    known,
    seen,
    scale,
    softcap,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Attend to the keys of positions `key` [n]: the new maximum, sum and result of the rows [m] of `query`.

    k_scale, v_scale: of a cache of int8 (`ops.triton.cache_rows`), else unused.

    Where MASKED, only keys that are `known` [n] are read, and rows see those that are `seen`, [1, n] or [m, n]; a
    row may see none. Else all are there, and every row sees all.
    """
    dim, value_dim = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    if MASKED:
        block = tl.load(table + key // BLOCK_SIZE, mask=known, other=0)
        k_inside = known[None, :] & (dim < HEAD_DIM)[:, None]
        v_inside = known[:, None] & (value_dim < VALUE_DIM)[None, :]
    else:
        block = tl.load(table + key // BLOCK_SIZE)
        k_inside = (dim < HEAD_DIM)[:, None]
        v_inside = (value_dim < VALUE_DIM)[None, :]
    slot = (block.to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + kv_head
    keys = tl.load(k_cache + slot[None, :] * HEAD_DIM + dim[:, None], mask=k_inside, other=0.0)
    product = tl.dot(query, keys.to(query.dtype))
    if k_cache.dtype.element_ty == tl.int8:
        product *= _scales(k_scale + slot, known, MASKED)[None, :]
    score, factor = raw_score(product, scale, softcap, HAS_SOFTCAP)
    if MASKED:
        score = tl.where(seen, score, float("-inf"))
    best = tl.maximum(top, tl.max(score, axis=1) * factor)
    # A row that has seen nothing keeps a maximum of -inf, and its exponent must not become inf - inf.
    shift = tl.where(best == float("-inf"), 0.0, best) if MASKED else best
    weight = tl.exp2(score * factor - shift[:, None])
    decay = tl.exp2(top - shift)
    total = total * decay + tl.sum(weight, axis=1)
    values = tl.load(v_cache + slot[:, None] * VALUE_DIM + value_dim[None, :], mask=v_inside, other=0.0)
    if v_cache.dtype.element_ty == tl.int8:
        values = (values.to(tl.float32) * _scales(v_scale + slot, known, MASKED)[:, None]).to(query.dtype)
    result = tl.dot(weight.to(values.dtype), values, result * decay[:, None])
    return best, total, result
