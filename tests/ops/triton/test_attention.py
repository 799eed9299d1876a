"""Attention over a paged cache: preparation, decode in pieces, prefill. What nothing may read holds NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ops.triton.attention_decode import attention_decode_kernel
from ops.triton.attention_prefill import attention_merge_kernel, attention_prefill_kernel
from ops.triton.attention_prepare import attention_prepare_kernel
from tests.ops.attention_case import Case, Shape, make_case, quantise_caches
from tests.ops.triton.tools import UNIT, poisoned, rounded, tensor, wide

SHAPES = {
    "plain": Shape(((40, 1), (0, 1), (150, 1)), packed=True),
    "window": Shape(((40, 1), (90, 1), (3, 1)), window=20, packed=True),
    "softcap and sinks": Shape(((70, 1), (5, 1)), softcap=5.0, sinks=True, interleaved=True),
    "norms": Shape(((33, 1), (8, 1)), norm=True, rotary_dims=8),
    "more heads than a tile": Shape(((20, 3), (0, 18)), heads=40, packed=True),
    "one head each": Shape(((33, 1), (65, 1)), heads=2, head_dim=24, value_dim=16, rotary_dims=0),
    "prompts": Shape(((0, 5), (0, 40), (17, 33)), packed=True),
    "prompts in a window": Shape(((0, 70), (50, 20)), window=17),
    "long behind a prefix": Shape(((200, 9), (3, 40), (90, 2)), packed=True),
    "prompts with sinks": Shape(((0, 20), (30, 3)), softcap=5.0, sinks=True, norm=True),
    "mixed": Shape(((50, 1), (12, 1), (0, 30), (16, 5)), packed=True),
    "written before": Shape(((20, 1), (0, 18)), skipped_writes=True, packed=True),
    "padded": Shape(((20, 1), (140, 1)), packed=True, padding_tokens=2, padding_sequences=2),
}
PIECE, PIECES = 64, 4
#: Heads that one program prepares: fewer than some shapes have.
CHUNK = 2
TILE = 16


def launch(case: Case, device: str, dtype: str, pieces: int = 1) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """out, and k_cache, v_cache and their scales, by the kernels, launched as the library launches them.

    pieces: of a prompt's context.
    """
    shape, arrays = case.shape, case.arrays
    given = {name: tensor(array, device) for name, array in arrays.items() if array.dtype.kind == "i"}
    given |= {name: tensor(arrays[name], device, dtype) for name in ("q", "k", "v") if name in arrays}
    none = torch.zeros(1, device=device)
    coded = arrays["k_cache"].dtype == np.int8
    kind = None if coded else dtype
    caches = [tensor(arrays[name], device, kind) for name in ("k_cache", "v_cache")]
    caches += [tensor(arrays[name], device) if coded else none for name in ("k_scale", "v_scale")]
    extra = {
        name: tensor(arrays[name], device) for name in ("rope_table", "q_norm", "k_norm", "sinks") if name in arrays
    }
    tokens = len(arrays["q"])
    heads, kv_heads = shape.heads, shape.kv_heads
    q = given["q"]
    k = given.get("k", q[:, heads * shape.head_dim :])
    v = given.get("v", q[:, (heads + kv_heads) * shape.head_dim :])
    turned = poisoned((tokens, heads, shape.head_dim), device, dtype)
    out = poisoned((tokens, heads * shape.value_dim), device, dtype)
    dims = {"HEAD_DIM": shape.head_dim, "VALUE_DIM": shape.value_dim}
    block = max(16, 1 << (max(shape.head_dim, shape.value_dim) - 1).bit_length())
    counts = np.diff(arrays["query_start"])
    decodes = 0
    while decodes < len(counts) and counts[decodes] == 1:
        decodes += 1
    prompts = len(shape.sequences) - decodes
    # Rows of padding decode as sequences of length 0; with prompts there are none.
    rows = decodes if prompts else tokens
    width = arrays["block_tables"].shape[1]
    heads_of = {
        "ROTARY": shape.rotary_dims, "INTERLEAVED": int(shape.interleaved), "HAS_Q_NORM": int(shape.norm),
        "HAS_K_NORM": int(shape.norm), "DEPENDENT": 0,
    }  # fmt: skip
    flags = {
        "HAS_SINKS": int(shape.sinks), "HAS_WINDOW": int(shape.window > 0), "HAS_SOFTCAP": int(shape.softcap > 0),
        "BLOCK_SIZE": shape.block_size, "BLOCK_N": 16, "BLOCK_D": block, "BLOCK_V": block, "STAGES": 2,
    }  # fmt: skip
    sinks = extra.get("sinks", none)
    rotary = [extra.get(name, none) for name in ("rope_table", "q_norm", "k_norm")]
    strides = (q.stride(0), k.stride(0), v.stride(0), shape.attributes.norm_epsilon)
    floats = (shape.scale, shape.softcap, shape.window)
    if rows:
        partial = poisoned((rows, heads, PIECES, shape.value_dim), device, "float32")
        stats = poisoned((rows, heads, PIECES, 2), device, "float32")
        counters = torch.zeros(rows * kv_heads, dtype=torch.int32, device=device)
        attention_decode_kernel[(rows, kv_heads, PIECES)](
            q, k, v, *caches, given["block_tables"], given["slot_mapping"], given["seq_lens"],
            given["positions"], *rotary, sinks, out, partial, stats, counters, *strides, *floats, width, PIECES,
            KV_HEADS=kv_heads, GROUP=heads // kv_heads, **dims, **heads_of, **flags, BLOCK_H=16,
            PIECE=PIECE, PIECES=PIECES,
        )  # fmt: skip
        assert not counters.any()
    if prompts:
        longest = int(counts.max())
        chunks = -(-heads // CHUNK) + -(-kv_heads // CHUNK)
        attention_prepare_kernel[(tokens - decodes, chunks)](
            q, k, v, turned, *caches, given["slot_mapping"], given["positions"], *rotary, *strides,
            decodes,
            HEADS=heads, KV_HEADS=kv_heads, **dims, **heads_of, BLOCK_D=block, CHUNK=CHUNK,
        )  # fmt: skip
        parts = poisoned((tokens - decodes, heads, pieces, shape.value_dim), device, "float32")
        stats = poisoned((tokens - decodes, heads, pieces, 2), device, "float32")
        pack = min(heads // kv_heads, TILE)
        across = -(-longest // (TILE // pack)) * pieces
        attention_prefill_kernel[(across, kv_heads * -(-(heads // kv_heads) // pack), prompts)](
            turned, *caches, given["block_tables"], given["query_start"], given["seq_lens"], sinks, out, parts,
            stats, *floats, width, decodes, pieces,
            KV_HEADS=kv_heads, GROUP=heads // kv_heads, **dims, **flags, SPLIT=int(pieces > 1), DEPENDENT=0,
            BLOCK_M=TILE, PIECE=32,
        )  # fmt: skip
        if pieces > 1:
            attention_merge_kernel[(tokens - decodes, heads)](
                parts, stats, sinks, out, pieces, decodes,
                HEADS=heads, VALUE_DIM=shape.value_dim, HAS_SINKS=int(shape.sinks), DEPENDENT=0, BLOCK_V=block,
                PIECES=8,
            )  # fmt: skip
    return out, caches


#: Every shape, and those with prompts once more with their context in pieces.
SPLIT = [name for name, shape in SHAPES.items() if any(new > 1 for _, new in shape.sequences)]
CASES = [(name, 1) for name in SHAPES] + [(name, pieces) for name in SPLIT for pieces in (2, 7)]


@pytest.mark.parametrize(("name", "pieces"), CASES)
def test_attention(device: str, dtype: str, name: str, pieces: int) -> None:
    case = make_case(replace(SHAPES[name], half=True), seed=len(name))
    for key in ("q", "k", "v", "k_cache", "v_cache"):
        if key in case.arrays:
            case.arrays[key] = rounded(case.arrays[key], dtype).astype(np.float32)
    out, (k_cache, v_cache, *_) = launch(case, device, dtype, pieces)
    exact = case.copy()
    expected = exact.reference(write=True)
    for name_, found in (("k_cache", k_cache), ("v_cache", v_cache)):
        stored = exact.arrays[name_].astype(np.float64)
        written = np.isfinite(stored)
        assert (np.isfinite(wide(found)) == written).all()
        assert np.abs(wide(found) - stored)[written].max() <= UNIT[dtype] * (1e-3 + np.abs(stored[written]).max())
    # Queries, keys and weights are each rounded once to the type: a score of size s is off by s units, and so is
    # the weight of its key; the output by that share of the largest value.
    score = case.shape.scale * case.shape.head_dim * 9 + 4
    bound = UNIT[dtype] * score * np.abs(wide(v_cache)[np.isfinite(wide(v_cache))]).max()
    assert np.isfinite(wide(out)).all()
    assert np.abs(wide(out) - expected).max() <= bound


@pytest.mark.parametrize(("name", "pieces"), CASES)
def test_attention_over_an_int8_cache(device: str, dtype: str, name: str, pieces: int) -> None:
    case = make_case(SHAPES[name], seed=len(name))
    for key in ("q", "k", "v"):
        if key in case.arrays:
            case.arrays[key] = rounded(case.arrays[key], dtype).astype(np.float32)
    quantise_caches(case)
    out, caches = launch(case, device, dtype, pieces)
    exact = case.copy()
    exact.reference(write=True)
    for side, codes, scales in zip("kv", caches[:2], caches[2:], strict=True):
        expected, wanted = exact.arrays[f"{side}_cache"].astype(np.int64), exact.arrays[f"{side}_scale"]
        written = np.isfinite(wanted)
        assert (np.isfinite(wide(scales)) == written).all()
        assert (np.abs(wide(scales) - wanted)[written] <= 1e-5 * wanted[written]).all()
        # A number half way between two codes may become either.
        apart = np.abs(wide(codes) - expected)
        assert apart.max() <= 1 and (apart > 0).mean() < 0.01 and not apart[~written].any()
        exact.arrays[f"{side}_cache"] = codes.cpu().numpy()
        exact.arrays[f"{side}_scale"] = scales.cpu().numpy()
    expected = exact.reference(write=False)
    # As with a cache of 16 bits, and values are rounded to the type once more.
    score = case.shape.scale * case.shape.head_dim * 9 + 5
    bound = UNIT[dtype] * score * 127 * np.nanmax(exact.arrays["v_scale"])
    assert np.isfinite(wide(out)).all()
    assert np.abs(wide(out) - expected).max() <= bound
