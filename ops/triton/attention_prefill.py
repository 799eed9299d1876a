"""Attention of several new tokens a sequence over its paged cache (FlashAttention-2, arXiv 2307.08691).

The rows of a tile are queries times the query heads that share a kv head, so that keys and values are read once for
all of them. Where few tiles meet a long context (a short prompt behind a cached prefix) the context is cut into
pieces, which other programs take; `attention_merge_kernel` puts their results together (Flash-Decoding; Dao et al.
2023).
"""

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
    partial,
    partial_stats,
    scale,
    softcap,
    window,
    table_width,
    first,
    pieces,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PIECE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q [T, heads, HEAD_DIM], out [T, heads, VALUE_DIM]; sequences from number `first` on.

    A tile has PACK = min(GROUP, BLOCK_M) heads of BLOCK_M // PACK queries. Grid (ceil(longest query / queries of a
    tile) * pieces, KV_HEADS * ceil(GROUP / PACK), sequences). Tiles of a sequence run from its last, the longest.

    With SPLIT, a sequence's context is cut into at most `pieces` of one size, of no fewer keys than PIECE, which is
    a multiple of BLOCK_N. Each leaves its sums in partial float32 [T - first, heads, pieces, VALUE_DIM], and
    maximum and sum in partial_stats float32 [T - first, heads, pieces, 2]; the maximum is -inf for a row that sees
    nothing of a piece. Else there is one piece, and neither is used.
    """
    PACK: tl.constexpr = GROUP if GROUP < BLOCK_M else BLOCK_M
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    QUERIES: tl.constexpr = BLOCK_M // PACK
    HEADS: tl.constexpr = KV_HEADS * GROUP
    wait_for_previous(DEPENDENT)
    sequence = tl.program_id(2) + first
    start_row = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - start_row
    tiles = (count + QUERIES - 1) // QUERIES
    piece = 0
    tile = tiles - 1 - tl.program_id(0)
    if SPLIT:
        piece = tl.program_id(0) % pieces
        tile = tiles - 1 - tl.program_id(0) // pieces
    if tile >= 0:
        kv_head = tl.program_id(1) // PACKS
        length = tl.load(seq_lens + sequence)
        row = tl.arange(0, BLOCK_M)
        in_group = tl.program_id(1) % PACKS * PACK + row % PACK
        head = kv_head * GROUP + in_group
        index = tile * QUERIES + row // PACK
        row_inside = (row < QUERIES * PACK) & (in_group < GROUP) & (index < count)
        position = length - count + index
        dim, value_dim = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        rows = (start_row + index).to(tl.int64) * HEADS + head
        out_mask = row_inside[:, None] & (value_dim < VALUE_DIM)[None, :]
        query = tl.load(
            q + rows[:, None] * HEAD_DIM + dim[None, :],
            mask=row_inside[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        result = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        table = block_tables + sequence.to(tl.int64) * table_width
        earliest = length - count + tile * QUERIES  # of the tile's queries
        oldest = 0
        if HAS_WINDOW:
            lowest = earliest - window + 1
            oldest = tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N
        newest = tl.minimum(earliest + QUERIES, length)
        if SPLIT:
            size = tl.maximum(tl.cdiv(length, pieces * BLOCK_N) * BLOCK_N, PIECE)
            oldest = tl.maximum(oldest, piece * size)
            newest = tl.minimum(newest, (piece + 1) * size)
        # Tiles that every row sees whole need no masks.
        whole = oldest
        if not HAS_WINDOW:
            whole = tl.maximum(tl.minimum(earliest + 1, newest) // BLOCK_N * BLOCK_N, oldest)
            for start in tl.range(oldest, whole, BLOCK_N, num_stages=STAGES):
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
        if SPLIT:
            place = (rows - first * HEADS) * pieces + piece
            at = partial + place[:, None] * VALUE_DIM + value_dim[None, :]
            tl.store(at, result, mask=out_mask)
            tl.store(partial_stats + place * 2, top, mask=row_inside)
            tl.store(partial_stats + place * 2 + 1, total, mask=row_inside)
        else:
            if HAS_SINKS:
                total += tl.exp2(tl.load(sinks + head, mask=row_inside, other=0.0) * LOG2_E - top)
            total = tl.where(total > 0, total, 1.0)
            out_at = out + rows[:, None] * VALUE_DIM + value_dim[None, :]
            tl.store(out_at, (result / total[:, None]).to(out.dtype.element_ty), mask=out_mask)


@triton.jit
def attention_merge_kernel(
    partial,
    partial_stats,
    sinks,
    out,
    pieces,
    first,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PIECES: tl.constexpr,
):
    """out [T, HEADS, VALUE_DIM] of what `attention_prefill_kernel` left, for tokens from number `first` on; pieces
    <= PIECES. Grid (T - first, HEADS).
    """
    let_next_start(DEPENDENT)
    wait_for_previous(DEPENDENT)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    piece, value_dim = tl.arange(0, PIECES), tl.arange(0, BLOCK_V)
    place, known = (token * HEADS + head) * pieces + piece, piece < pieces
    tops = tl.load(partial_stats + place * 2, mask=known, other=float("-inf"))
    totals = tl.load(partial_stats + place * 2 + 1, mask=known, other=0.0)
    results = tl.load(
        partial + place[:, None] * VALUE_DIM + value_dim[None, :],
        mask=known[:, None] & (value_dim < VALUE_DIM)[None, :],
        other=0.0,
    )
    top = tl.max(tops, axis=0)
    weight = tl.exp2(tops - top)
    total = tl.sum(totals * weight, axis=0)
    if HAS_SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - top)
    result = tl.sum(results * weight[:, None], axis=0) / total
    out_at = out + ((token + first) * HEADS + head) * VALUE_DIM + value_dim
    tl.store(out_at, result.to(out.dtype.element_ty), mask=value_dim < VALUE_DIM)
