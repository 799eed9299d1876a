"""The meaning of PagedAttention.

Sources: paged cache, Kwon et al. 2023 (arXiv 2309.06180); RoPE, Su et al. 2021 (arXiv 2104.09864); soft-cap,
Gemma 2 (arXiv 2408.00118); attention sinks as a learned logit, gpt-oss (arXiv 2508.10925).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.reference.rms_norm import rms_norm

Floats = NDArray[np.floating[Any]]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class AttentionAttributes:
    """The node's attributes, as the schema names them."""

    heads: int
    kv_heads: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    rotary_dims: int = 0
    interleaved: bool = False
    norm_epsilon: float = 1e-6


@dataclass(frozen=True)
class AttentionBatch:
    """The packed tokens: which rows belong to which sequence, and where their keys and values lie."""

    block_tables: Int32
    slot_mapping: Int32
    query_start: Int32
    seq_lens: Int32
    positions: Int64


def rotary(x: Floats, table: Floats, positions: Int64, interleaved: bool) -> Floats:
    """x [T, heads, dim] with its leading dims turned; table [P, rotary_dims] holds cosines, then sines."""
    dims = table.shape[1]
    cosine = table[positions, None, : dims // 2].astype(x.dtype)
    sine = table[positions, None, dims // 2 :].astype(x.dtype)
    turned = x.copy()
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(0, dims // 2), slice(dims // 2, dims))
    )
    a, b = x[..., first], x[..., second]
    turned[..., first] = a * cosine - b * sine
    turned[..., second] = b * cosine + a * sine
    return turned


def stored(values: Floats, cache: Floats) -> tuple[Floats, Floats | None]:
    """Heads [n, kv_heads, dim] as a cache keeps them: in its type, or for int8 codes and a scale for each head.

    A code is value / scale rounded to the nearest, of halves up; the scale is the largest magnitude over 127.
    """
    if cache.dtype != np.int8:
        return values.astype(cache.dtype), None
    scales = np.abs(values).max(axis=-1, keepdims=True) / 127
    codes = np.floor(np.divide(values, scales, out=np.zeros_like(values), where=scales > 0) + 0.5)
    return codes.astype(np.int8), scales[..., 0].astype(np.float32)


def attend(q: Floats, k: Floats, v: Floats, attributes: AttentionAttributes, sinks: Floats | None) -> Floats:
    """One query q [heads, dim] over the n keys that it sees: k [n, kv_heads, dim], v [n, kv_heads, v_dim]."""
    group = attributes.heads // attributes.kv_heads
    scores = np.einsum("hd,nhd->hn", q, np.repeat(k, group, axis=1)) * attributes.scale
    if attributes.softcap:
        scores = attributes.softcap * np.tanh(scores / attributes.softcap)
    if sinks is not None:
        scores = np.concatenate([scores, sinks[:, None].astype(scores.dtype)], axis=1)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    out: Floats = np.einsum("hn,nhd->hd", weights[:, : len(k)], np.repeat(v, group, axis=1))
    return out


def paged_attention(
    q: Floats,
    k: Floats | None,
    v: Floats | None,
    k_cache: Floats,
    v_cache: Floats,
    batch: AttentionBatch,
    attributes: AttentionAttributes,
    *,
    rope_table: Floats | None = None,
    q_norm: Floats | None = None,
    k_norm: Floats | None = None,
    sinks: Floats | None = None,
    k_scale: Floats | None = None,
    v_scale: Floats | None = None,
) -> Floats:
    """out [T, heads * v_dim]; k_cache and v_cache are updated in place, in their own type, and with caches of int8
    their scales [blocks, block_size, kv_heads] too.

    A query with index i of n in a sequence of length L stands at cache position L - n + i; `positions` only choose
    rows of the RoPE table. Computes in the type of q: give float64 for an exact reference.
    """
    head_dim, value_dim = k_cache.shape[3], v_cache.shape[3]
    heads, kv_heads = attributes.heads, attributes.kv_heads
    tokens, real = len(q), int(batch.query_start[-1])
    if k is None or v is None:
        q, k, v = np.split(q, [heads * head_dim, (heads + kv_heads) * head_dim], axis=1)
    queries = q[:real].reshape(real, heads, head_dim)
    keys = k[:real].reshape(real, kv_heads, head_dim)
    values = v[:real].reshape(real, kv_heads, value_dim)
    if q_norm is not None:
        queries = rms_norm(queries, q_norm.astype(q.dtype), attributes.norm_epsilon)
    if k_norm is not None:
        keys = rms_norm(keys, k_norm.astype(q.dtype), attributes.norm_epsilon)
    if rope_table is not None:
        queries = rotary(queries, rope_table, batch.positions[:real], attributes.interleaved)
        keys = rotary(keys, rope_table, batch.positions[:real], attributes.interleaved)

    flat_keys, flat_values = k_cache.reshape(-1, kv_heads, head_dim), v_cache.reshape(-1, kv_heads, value_dim)
    written = batch.slot_mapping[:real] >= 0
    slots_written = batch.slot_mapping[:real][written]
    key_scales, value_scales = (one if one is None else one.reshape(-1, kv_heads) for one in (k_scale, v_scale))
    for flat, own, scales in ((flat_keys, keys, key_scales), (flat_values, values, value_scales)):
        flat[slots_written], found = stored(own[written], flat)
        if scales is not None and found is not None:
            scales[slots_written] = found

    out = np.zeros((tokens, heads * value_dim), dtype=q.dtype)
    block_size = k_cache.shape[1]
    for sequence, length in enumerate(batch.seq_lens):
        rows = range(batch.query_start[sequence], batch.query_start[sequence + 1])
        for index, row in enumerate(rows):
            position = int(length) - len(rows) + index
            start = max(0, position - attributes.window + 1) if attributes.window else 0
            seen = np.arange(start, position + 1)
            slots = batch.block_tables[sequence, seen // block_size] * block_size + seen % block_size
            keys_seen, values_seen = flat_keys[slots].astype(q.dtype), flat_values[slots].astype(q.dtype)
            if key_scales is not None and value_scales is not None:
                keys_seen = keys_seen * key_scales[slots, :, None]
                values_seen = values_seen * value_scales[slots, :, None]
            out[row] = attend(queries[row], keys_seen, values_seen, attributes, sinks).reshape(-1)
    return out
