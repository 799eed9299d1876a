"""What comes before attention of several tokens: q/k norm, RoPE, and the write of keys and values to their
slots.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.cache_rows import store_rows
from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.rotary import turned_heads


@triton.jit
def attention_prepare_kernel(
    q,
    k,
    v,
    turned,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    slot_mapping,
    positions,
    rope_table,
    q_norm,
    k_norm,
    q_stride,
    k_stride,
    v_stride,
    norm_epsilon,
    first,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """CHUNK heads of one token: queries go to `turned` [T, HEADS, HEAD_DIM], keys and values to the cache.

    Grid (T - first, ceil(HEADS / CHUNK) + ceil(KV_HEADS / CHUNK)), tokens from number `first` on; BLOCK_D >=
    HEAD_DIM, VALUE_DIM. A slot of -1 writes nothing to the cache. k_scale, v_scale float32 [slots, KV_HEADS]: of a
    cache of int8, else unused.
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    token, chunk = (tl.program_id(0) + first).to(tl.int64), tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)[None, :]
    slot = tl.load(slot_mapping + token).to(tl.int64)
    row = rope_table
    if ROTARY > 0:
        row = rope_table + tl.load(positions + token) * ROTARY
    CHUNKS: tl.constexpr = (HEADS + CHUNK - 1) // CHUNK
    if chunk < CHUNKS:
        head = chunk * CHUNK + tl.arange(0, CHUNK)
        source = q + token * q_stride + head * HEAD_DIM
        inside = head < HEADS
        value = turned_heads(
            source, inside, q_norm, norm_epsilon, row, HEAD_DIM, ROTARY, INTERLEAVED, HAS_Q_NORM, BLOCK_D
        )
        target = turned + (token * HEADS + head)[:, None] * HEAD_DIM + dim
        tl.store(target, value.to(turned.dtype.element_ty), mask=inside[:, None] & (dim < HEAD_DIM))
    elif slot >= 0:
        own = (chunk - CHUNKS) * CHUNK + tl.arange(0, CHUNK)
        source = k + token * k_stride + own * HEAD_DIM
        inside = own < KV_HEADS
        value = turned_heads(
            source, inside, k_norm, norm_epsilon, row, HEAD_DIM, ROTARY, INTERLEAVED, HAS_K_NORM, BLOCK_D
        )
        store_rows(k_cache, k_scale, slot * KV_HEADS + own, value, inside, HEAD_DIM, BLOCK_D)
        known = inside[:, None] & (dim < VALUE_DIM)
        plain = tl.load(v + token * v_stride + own[:, None] * VALUE_DIM + dim, mask=known, other=0.0)
        store_rows(v_cache, v_scale, slot * KV_HEADS + own, plain.to(tl.float32), inside, VALUE_DIM, BLOCK_D)
