"""Attention of several new tokens a sequence over its paged cache (FlashAttention-2, arXiv 2307.08691)."""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.attention_tile import LOG2_E, attend_tile
from ops.triton.dependent import let_next_start, wait_for_previous


@triton.jit
def attention_prefill_kernel(
    q,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    block_tables,
    query_start,
    seq_lens,
    sinks,
    out,
    scale,
    softcap,
    window,
    table_width,
    first,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q [T, HEADS, HEAD_DIM], out [T, HEADS, VALUE_DIM]; sequences from number `first` on.

    Grid (ceil(longest query / BLOCK_M), HEADS, sequences). Tiles of a sequence run from its last, the longest.
    """
    wait_for_previous(DEPENDENT)
    sequence = tl.program_id(2) + first
    start_row = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - start_row
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    tile = tiles - 1 - tl.program_id(0)
    if tile >= 0:
        head = tl.program_id(1)
        kv_head = head // (HEADS // KV_HEADS)
        length = tl.load(seq_lens + sequence)
        index = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_inside = index < count
        position = length - count + index
        dim, value_dim = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        rows = (start_row + index).to(tl.int64) * HEADS + head
        query = tl.load(
            q + rows[:, None] * HEAD_DIM + dim[None, :],
            mask=row_inside[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        result = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        table = block_tables + sequence.to(tl.int64) * table_width
        oldest = 0
        if HAS_WINDOW:
            lowest = length - count + tile * BLOCK_M - window + 1
            oldest = tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N
        newest = tl.minimum(length - count + (tile + 1) * BLOCK_M, length)
        # Tiles that every row sees whole need no masks.
        whole = oldest
        if not HAS_WINDOW:
            whole = (length - count + tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
            for start in tl.range(0, whole, BLOCK_N, num_stages=STAGES):
                key = start + tl.arange(0, BLOCK_N)
                top, total, result = attend_tile(
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
                    key,
                    key,
                    scale,
                    softcap,
                    KV_HEADS,
                    HEAD_DIM,
                    VALUE_DIM,
                    BLOCK_SIZE,
                    HAS_SOFTCAP,
                    0,
                    BLOCK_D,
                    BLOCK_V,
                )
        for start in tl.range(whole, newest, BLOCK_N, num_stages=STAGES):
            key = start + tl.arange(0, BLOCK_N)
            known = key < newest
            if HAS_WINDOW:
                # Blocks wholly before the window may be another's by now: their numbers are not read.
                known = known & (key >= lowest)
            seen = (key[None, :] <= position[:, None]) & known[None, :]
            if HAS_WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            top, total, result = attend_tile(
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
                KV_HEADS,
                HEAD_DIM,
                VALUE_DIM,
                BLOCK_SIZE,
                HAS_SOFTCAP,
                1,
                BLOCK_D,
                BLOCK_V,
            )
        let_next_start(DEPENDENT)
        if HAS_SINKS:
            total += tl.exp2(tl.load(sinks + head) * LOG2_E - top)
        total = tl.where(total > 0, total, 1.0)
        tl.store(
            out + rows[:, None] * VALUE_DIM + value_dim[None, :],
            (result / total[:, None]).to(out.dtype.element_ty),
            mask=row_inside[:, None] & (value_dim < VALUE_DIM)[None, :],
        )
