"""Attention of one new token a sequence, split over the context by the sequence's own length.

A program takes one kv head of one sequence and one piece of its context; all query heads that share the kv head
fill the rows of one tensor-core tile. It normalises and turns its queries itself; the one whose piece ends with the
new token does so with its key, which it writes to the cache with the value. How long a piece is depends on the
sequence and on the variant, which a step's number of rows chooses: within a variant the batch changes no result.
The last program to come merges the pieces in their order (Flash-Decoding; Dao et al. 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.attention_tile import LOG2_E, attend_tile, raw_score
from ops.triton.cache_rows import store_rows
from ops.triton.dependent import let_next_start, wait_for_previous
from ops.triton.rotary import turned_heads


@triton.jit
def _weighted_piece(own, stats, top, part, parts, mask, row_inside, VALUE_DIM: tl.constexpr):
    """What a piece adds to the result of rows whose maximum over all pieces is `top`; nothing after the last."""
    there = part < parts
    result = tl.load(own + part * VALUE_DIM, mask=mask & there, other=0.0, cache_modifier=".cg")
    own_top = tl.load(stats + part * 2, mask=row_inside & there, other=float("-inf"), cache_modifier=".cg")
    return result * tl.exp2(own_top - top)[:, None]


@triton.jit
def attention_decode_kernel(
    q,
    k,
    v,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    block_tables,
    slot_mapping,
    seq_lens,
    positions,
    rope_table,
    q_norm,
    k_norm,
    sinks,
    out,
    partial,
    partial_stats,
    counters,
    q_stride,
    k_stride,
    v_stride,
    norm_epsilon,
    scale,
    softcap,
    window,
    table_width,
    pieces,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q, k, v: rows of heads with their strides; out [R, heads, VALUE_DIM], partial float32 [R, heads, pieces,
    VALUE_DIM], partial_stats float32 [R, heads, pieces, 2] (maximum, sum), counters int32 [R, KV_HEADS], zero
    before and after. Grid (R, KV_HEADS, pieces). A sequence of length 0 gives zeros; a slot of -1 writes nothing.
    """
    sequence, kv_head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(seq_lens + sequence)
    slot = tl.load(slot_mapping + sequence).to(tl.int64)
    rope_row = rope_table
    if ROTARY > 0:
        rope_row = rope_table + tl.load(positions + sequence) * ROTARY
    oldest = 0
    if HAS_WINDOW:
        oldest = tl.maximum(length - window, 0)
    span = length - oldest
    # As many pieces as PIECE keys each would take, at most PIECES, and all of about one size.
    count = tl.maximum(tl.minimum((span + PIECE - 1) // PIECE, PIECES), 1)
    size = tl.maximum((span + count * BLOCK_N - 1) // (count * BLOCK_N), 1) * BLOCK_N
    begin = oldest + piece * size
    end = tl.minimum(begin + size, length)
    group = tl.arange(0, BLOCK_H)
    heads = kv_head * GROUP + group
    row_inside = group < GROUP
    value_dim = tl.arange(0, BLOCK_V)
    rows = sequence * (KV_HEADS * GROUP) + heads
    out_at = out + rows[:, None] * VALUE_DIM + value_dim[None, :]
    out_mask = row_inside[:, None] & (value_dim < VALUE_DIM)[None, :]
    table = block_tables + sequence * table_width
    if (begin >= end) & (piece > 0):
        return  # a captured grid has room for the longest context
    wait_for_previous(DEPENDENT)
    if begin >= end:
        tl.store(out_at, tl.zeros([BLOCK_H, BLOCK_V], out.dtype.element_ty), mask=out_mask)
        return
    query = turned_heads(
        q + sequence * q_stride + heads * HEAD_DIM,
        row_inside,
        q_norm,
        norm_epsilon,
        rope_row,
        HEAD_DIM,
        ROTARY,
        INTERLEAVED,
        HAS_Q_NORM,
        BLOCK_D,
    ).to(out.dtype.element_ty)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    result = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    if (end == length) & (slot >= 0):
        # The new token is not in the cache yet: it is where this piece begins to add up.
        one = tl.arange(0, 1)
        new_key = turned_heads(
            k + sequence * k_stride + kv_head * HEAD_DIM + one,
            one == 0,
            k_norm,
            norm_epsilon,
            rope_row,
            HEAD_DIM,
            ROTARY,
            INTERLEAVED,
            HAS_K_NORM,
            BLOCK_D,
        )
        source = v + sequence * v_stride + kv_head * VALUE_DIM + value_dim[None, :]
        new_value = tl.load(source, mask=(value_dim < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
        own_slot = slot * KV_HEADS + kv_head + one
        new_key = store_rows(k_cache, k_scale, own_slot, new_key, one == 0, HEAD_DIM, BLOCK_D)
        new_value = store_rows(v_cache, v_scale, own_slot, new_value, one == 0, VALUE_DIM, BLOCK_V)
        product = tl.sum(query.to(tl.float32) * new_key, axis=1)
        product, factor = raw_score(product, scale, softcap, HAS_SOFTCAP)
        top = product * factor
        total = tl.full([BLOCK_H], 1.0, tl.float32)
        result += new_value
        end -= 1
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK_N)
        known = key < end
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
            known[None, :],
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
    parts = (span + size - 1) // size
    last = parts == 1
    if parts > 1:
        place = rows * pieces + piece
        at = partial + place[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(at, result, mask=out_mask, cache_modifier=".cg")
        tl.store(partial_stats + place * 2, top, mask=row_inside, cache_modifier=".cg")
        tl.store(partial_stats + place * 2 + 1, total, mask=row_inside, cache_modifier=".cg")
        tl.debug_barrier()  # all threads have written before one of them says so
        counter = counters + sequence * KV_HEADS + kv_head
        last = tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1
        if last:
            tl.store(counter, 0)
            part = tl.arange(0, PIECES)
            stats_at = partial_stats + (rows[:, None] * pieces + part[None, :]) * 2
            known = row_inside[:, None] & (part < parts)[None, :]
            tops = tl.load(stats_at, mask=known, other=float("-inf"), cache_modifier=".cg")
            totals = tl.load(stats_at + 1, mask=known, other=0.0, cache_modifier=".cg")
            top = tl.where(row_inside, tl.max(tops, axis=1), 0.0)
            total = tl.where(row_inside, tl.sum(totals * tl.exp2(tops - top[:, None]), axis=1), 1.0)
            result = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
            own = partial + rows[:, None] * pieces * VALUE_DIM + value_dim[None, :]
            stats = partial_stats + rows * pieces * 2
            # Four at a time are on their way together.
            for start in range(0, parts, 4):
                first = _weighted_piece(own, stats, top, start, parts, out_mask, row_inside, VALUE_DIM)
                second = _weighted_piece(own, stats, top, start + 1, parts, out_mask, row_inside, VALUE_DIM)
                third = _weighted_piece(own, stats, top, start + 2, parts, out_mask, row_inside, VALUE_DIM)
                fourth = _weighted_piece(own, stats, top, start + 3, parts, out_mask, row_inside, VALUE_DIM)
                result = result + first + second + third + fourth
    if last:
        if HAS_SINKS:
            total += tl.exp2(tl.load(sinks + heads, mask=row_inside, other=0.0) * LOG2_E - top)
        tl.store(out_at, (result / total[:, None]).to(out.dtype.element_ty), mask=out_mask)
