"""Attention of one new token a sequence, split over the context by the sequence's own length.

A program takes one kv head of one sequence and one piece of its context; all query heads that share the kv head
fill the rows of one tensor-core tile. How long a piece is depends on the sequence alone, so its result does not
depend on the batch. Partial results are merged by `attention_merge_kernel` (Flash-Decoding; Dao et al. 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.activation import tanh


@triton.jit
def piece_length(span, PIECE: tl.constexpr, PIECES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Keys of one piece: PIECE, or more where PIECES of them would not cover the span."""
    least = (span + PIECES - 1) // PIECES
    return tl.maximum(PIECE, (least + BLOCK_N - 1) // BLOCK_N * BLOCK_N)


@triton.jit
def attention_decode_kernel(
    q,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    sinks,
    out,
    partial,
    partial_stats,
    scale,
    softcap,
    window,
    table_width,
    pieces,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    """q [R, heads, HEAD_DIM], out [R, heads, VALUE_DIM], partial float32 [R, heads, pieces, VALUE_DIM],
    partial_stats float32 [R, heads, pieces, 2] (maximum, sum). Grid (R, KV_HEADS, pieces).
    """
    sequence, kv_head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(seq_lens + sequence)
    oldest = 0
    if HAS_WINDOW:
        oldest = tl.maximum(length - window, 0)
    size = piece_length(length - oldest, PIECE, PIECES, BLOCK_N)
    begin = oldest + piece * size
    end = tl.minimum(begin + size, length)
    group = tl.arange(0, BLOCK_H)
    heads = kv_head * GROUP + group
    row_inside = group < GROUP
    dim, value_dim = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    rows = sequence.to(tl.int64) * (KV_HEADS * GROUP) + heads
    out_at = out + rows[:, None] * VALUE_DIM + value_dim[None, :]
    out_mask = row_inside[:, None] & (value_dim < VALUE_DIM)[None, :]
    if begin >= end:
        if piece == 0:
            tl.store(out_at, tl.zeros([BLOCK_H, BLOCK_V], out.dtype.element_ty), mask=out_mask)
        return
    query = tl.load(
        q + rows[:, None] * HEAD_DIM + dim[None, :],
        mask=row_inside[:, None] & (dim < HEAD_DIM)[None, :],
        other=0.0,
    )
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    result = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_width
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        seen = key < end
        block = tl.load(table + key // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slot = (block * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + kv_head
        keys = tl.load(
            k_cache + slot[None, :] * HEAD_DIM + dim[:, None],
            mask=seen[None, :] & (dim < HEAD_DIM)[:, None],
            other=0.0,
        )
        score = tl.dot(query, keys) * scale
        if HAS_SOFTCAP:
            score = softcap * tanh(score / softcap)
        score = tl.where(seen[None, :], score, float("-inf"))
        best = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - best[:, None])
        decay = tl.exp(top - best)
        total = total * decay + tl.sum(weight, axis=1)
        values = tl.load(
            v_cache + slot[:, None] * VALUE_DIM + value_dim[None, :],
            mask=seen[:, None] & (value_dim < VALUE_DIM)[None, :],
            other=0.0,
        )
        result = tl.dot(weight.to(values.dtype), values, result * decay[:, None])
        top = best
    if size >= length - oldest:
        if HAS_SINKS:
            total += tl.exp(tl.load(sinks + heads, mask=row_inside, other=0.0) - top)
        tl.store(out_at, (result / total[:, None]).to(out.dtype.element_ty), mask=out_mask)
    else:
        place = rows * pieces + piece
        tl.store(partial + place[:, None] * VALUE_DIM + value_dim[None, :], result, mask=out_mask)
        tl.store(partial_stats + place * 2, top, mask=row_inside)
        tl.store(partial_stats + place * 2 + 1, total, mask=row_inside)


@triton.jit
def attention_merge_kernel(
    partial,
    partial_stats,
    seq_lens,
    sinks,
    out,
    window,
    pieces,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Merges the pieces of each head in their order; grid (R, HEADS). A single piece was written already."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(seq_lens + sequence)
    span = length
    if HAS_WINDOW:
        span = tl.minimum(length, window)
    size = piece_length(span, PIECE, PIECES, BLOCK_N)
    if size < span:
        row = sequence.to(tl.int64) * HEADS + head
        piece, dim = tl.arange(0, PIECES), tl.arange(0, BLOCK_V)
        known = piece * size < span
        place = row * pieces + piece
        top = tl.load(partial_stats + place * 2, mask=known, other=float("-inf"))
        total = tl.load(partial_stats + place * 2 + 1, mask=known, other=0.0)
        best = tl.max(top, axis=0)
        share = tl.exp(top - best)
        whole = tl.sum(share * total, axis=0)
        if HAS_SINKS:
            whole += tl.exp(tl.load(sinks + head) - best)
        inside = dim < VALUE_DIM
        parts = tl.load(
            partial + place[:, None] * VALUE_DIM + dim[None, :], mask=known[:, None] & inside[None, :], other=0.0
        )
        merged = tl.sum(parts * share[:, None], axis=0) / whole
        tl.store(out + row * VALUE_DIM + dim, merged.to(out.dtype.element_ty), mask=inside)
