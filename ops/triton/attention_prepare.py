"""What comes before attention: q/k norm, RoPE, and the write of keys and values to their slots."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention_prepare_kernel(
    q,
    k,
    v,
    turned,
    k_cache,
    v_cache,
    slot_mapping,
    positions,
    rope_table,
    q_norm,
    k_norm,
    q_stride,
    k_stride,
    v_stride,
    norm_epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One head of one token: queries go to `turned` [T, HEADS, HEAD_DIM], keys and values to the cache.

    Grid (T, HEADS + 2 * KV_HEADS); BLOCK_D >= HEAD_DIM, VALUE_DIM. A slot of -1 writes nothing to the cache.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if head >= HEADS + KV_HEADS:
        if slot >= 0:
            own = head - HEADS - KV_HEADS
            inside = dim < VALUE_DIM
            value = tl.load(v + token * v_stride + own * VALUE_DIM + dim, mask=inside, other=0.0)
            tl.store(v_cache + (slot * KV_HEADS + own) * VALUE_DIM + dim, value, mask=inside)
    else:
        is_key = head >= HEADS
        own = tl.where(is_key, head - HEADS, head)
        source = q + token * q_stride + own * HEAD_DIM
        if is_key:
            source = k + token * k_stride + own * HEAD_DIM
        inside = dim < HEAD_DIM
        value = tl.load(source + dim, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0
        if HAS_Q_NORM or HAS_K_NORM:
            scale = tl.rsqrt(tl.sum(value * value, axis=0) / HEAD_DIM + norm_epsilon)
            gain = tl.full([BLOCK_D], 1.0, tl.float32)
            if HAS_Q_NORM:
                gain = tl.load(q_norm + dim, mask=inside & (head < HEADS), other=1.0)
            if HAS_K_NORM:
                gain = tl.where(is_key, tl.load(k_norm + dim, mask=inside, other=1.0), gain)
            if not HAS_Q_NORM:
                scale = tl.where(is_key, scale, 1.0)
            if not HAS_K_NORM:
                scale = tl.where(is_key, 1.0, scale)
            value = value * scale * gain
        if ROTARY > 0:
            turns = dim < ROTARY
            if INTERLEAVED:
                other = dim ^ 1
                angle = dim // 2
                first = dim % 2 == 0
            else:
                other = tl.where(dim < ROTARY // 2, dim + ROTARY // 2, dim - ROTARY // 2)
                angle = dim % (ROTARY // 2)
                first = dim < ROTARY // 2
            partner = tl.load(source + other, mask=turns, other=0.0).to(tl.float32)
            if HAS_Q_NORM or HAS_K_NORM:
                gain = tl.full([BLOCK_D], 1.0, tl.float32)
                if HAS_Q_NORM:
                    gain = tl.load(q_norm + other, mask=turns & (head < HEADS), other=1.0)
                if HAS_K_NORM:
                    gain = tl.where(is_key, tl.load(k_norm + other, mask=turns, other=1.0), gain)
                partner = partner * scale * gain
            row = rope_table + tl.load(positions + token) * ROTARY
            cosine = tl.load(row + angle, mask=turns, other=1.0)
            sine = tl.load(row + ROTARY // 2 + angle, mask=turns, other=0.0)
            value = value * cosine + tl.where(first, -partner, partner) * sine
        if is_key:
            if slot >= 0:
                target = k_cache + (slot * KV_HEADS + own) * HEAD_DIM
                tl.store(target + dim, value.to(k_cache.dtype.element_ty), mask=inside)
        else:
            target = turned + (token * HEADS + own) * HEAD_DIM
            tl.store(target + dim, value.to(turned.dtype.element_ty), mask=inside)
