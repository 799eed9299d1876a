"""Random attention problems with poisoned caches, and the bound that rounding sets to a kernel's error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.reference.paged_attention import AttentionAttributes, AttentionBatch, paged_attention, stored
from tests.ops.runner import run

Array = NDArray[Any]

UNIT = 2.0**-24  # rounding of one float32 operation
# A sum of n rounded terms is off by about sqrt(n) units, not n; with this factor the chance that it is off by more
# is below 1e-7 for each sum (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis").
CONFIDENCE = 6.0


@dataclass(frozen=True)
class Shape:
    """A model's attention and a batch: each sequence is (tokens already cached, new tokens)."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    value_dim: int = 16
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    rotary_dims: int = 16
    interleaved: bool = False
    norm: bool = False
    sinks: bool = False
    packed: bool = False
    half: bool = False
    padding_tokens: int = 0
    padding_sequences: int = 0
    spare_blocks: int = 3
    skipped_writes: bool = False
    scale: float = 0.25

    @property
    def attributes(self) -> AttentionAttributes:
        """As the reference takes them."""
        return AttentionAttributes(
            self.heads,
            self.kv_heads,
            self.scale,
            self.window,
            self.softcap,
            self.rotary_dims,
            self.interleaved,
        )


@dataclass
class Case:
    """The arrays of one problem, named as the operator's inputs. Cache slots that nothing may read hold NaN."""

    shape: Shape
    arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def real(self) -> int:
        """Tokens without padding."""
        return int(self.arrays["query_start"][-1])

    def batch(self, *, write: bool) -> AttentionBatch:
        """As the reference takes it; without `write` it leaves the caches alone."""
        slots = self.arrays["slot_mapping"]
        return AttentionBatch(
            self.arrays["block_tables"],
            slots if write else np.full_like(slots, -1),
            self.arrays["query_start"],
            self.arrays["seq_lens"],
            self.arrays["positions"],
        )

    def copy(self) -> Case:
        """With caches of its own, since a run changes them."""
        return replace(self, arrays={name: array.copy() for name, array in self.arrays.items()})

    def run(self, *, kernels: str = "auto", threads: int = 2, shared: bool = True) -> Array:
        """The operator's output; the caches in `arrays` are updated."""
        shape = self.shape
        attributes: dict[str, int | float | str] = {
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "scale": shape.scale,
            "window": shape.window,
            "softcap": shape.softcap,
            "rotary_dims": shape.rotary_dims,
            "interleaved": int(shape.interleaved),
        }
        return run("PagedAttention", self.arrays, attributes, kernels=kernels, threads=threads, shared=shared)[
            "out"
        ]

    def reference(self, *, write: bool) -> Array:
        """The definition in float64, on the caches in `arrays`; with `write` it updates them."""
        wide = {name: self.arrays[name].astype(np.float64) for name in ("q", "k", "v") if name in self.arrays}
        extras = ("rope_table", "q_norm", "k_norm", "sinks", "k_scale", "v_scale")
        return paged_attention(
            wide["q"],
            wide.get("k"),
            wide.get("v"),
            self.arrays["k_cache"],
            self.arrays["v_cache"],
            self.batch(write=write),
            self.shape.attributes,
            **{name: self.arrays.get(name) for name in extras},
        )


def rope_table(positions: int, dims: int) -> Array:
    """float32 [positions, dims]: cosines, then sines, with base 10000."""
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, dims, 2) / dims)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _lay_out(case: Case, rng: np.random.Generator) -> None:
    """Blocks in random order, slots and lengths of the batch."""
    shape, size = case.shape, case.shape.block_size
    lengths = [cached + new for cached, new in shape.sequences]
    needed = [-(-length // size) for length in lengths]
    order = rng.permutation(sum(needed) + shape.spare_blocks).astype(np.int32)
    rows = len(lengths) + shape.padding_sequences
    # What no sequence uses names a block that does not exist: reading it would be an error.
    tables = np.full((rows, max(needed, default=0) + 1), 2**31 - 1, dtype=np.int32)
    slots, positions, starts = [], [], [0]
    used = 0
    for row, ((cached, new), blocks) in enumerate(zip(shape.sequences, needed, strict=True)):
        tables[row, :blocks] = order[used : used + blocks]
        used += blocks
        at = np.arange(cached, cached + new)
        slots.append(tables[row, at // size] * size + at % size)
        positions.append(at)
        starts.append(starts[-1] + new)
        if shape.window:
            tables[row, : max(0, cached - shape.window + 1) // size] = -1  # freed: wholly before the window
    real, pad = starts[-1], shape.padding_tokens
    case.arrays |= {
        "block_tables": tables,
        "slot_mapping": np.concatenate([*slots, np.full(pad, -1)]).astype(np.int32),
        "query_start": np.array(starts + [real] * shape.padding_sequences, dtype=np.int32),
        "seq_lens": np.array(lengths + [0] * shape.padding_sequences, dtype=np.int32),
        "positions": np.concatenate([*positions, np.zeros(pad)]).astype(np.int64),
        "plan": np.array([0, 0, 0, 0, real, len(lengths)], dtype=np.int32),
    }
    case.arrays["k_cache"], case.arrays["v_cache"] = (
        np.full((len(order), size, shape.kv_heads, dim), np.nan, dtype=np.float16 if shape.half else np.float32)
        for dim in (shape.head_dim, shape.value_dim)
    )


def _fill_context(case: Case, rng: np.random.Generator) -> None:
    """Writes what earlier steps would have left: only positions that the batch may still see."""
    shape, size = case.shape, case.shape.block_size
    for row, (cached, _) in enumerate(shape.sequences):
        oldest = max(0, cached - shape.window + 1) if shape.window else 0
        for at in range(oldest, cached):
            block = case.arrays["block_tables"][row, at // size]
            for name in ("k_cache", "v_cache"):
                cache = case.arrays[name]
                cache[block, at % size] = rng.standard_normal(cache.shape[2:])


def make_case(shape: Shape, seed: int = 0) -> Case:
    """A problem of this shape with normal random numbers."""
    rng = np.random.default_rng(seed)
    case = Case(shape)
    _lay_out(case, rng)
    _fill_context(case, rng)
    arrays = case.arrays
    tokens = case.real + shape.padding_tokens
    widths = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.value_dim)
    rows = [rng.standard_normal((tokens, width)).astype(np.float32) for width in widths]
    for one in rows:
        one[case.real :] = np.nan  # padding may hold anything
    if shape.packed:
        arrays["q"] = np.concatenate(rows, axis=1)
    else:
        arrays["q"], arrays["k"], arrays["v"] = rows
    if shape.rotary_dims:
        longest = max((sum(one) for one in shape.sequences), default=0)
        arrays["rope_table"] = rope_table(max(longest, 1), shape.rotary_dims)
    if shape.norm:
        arrays["q_norm"], arrays["k_norm"] = rng.uniform(0.5, 1.5, (2, shape.head_dim)).astype(np.float32)
    if shape.sinks:
        arrays["sinks"] = rng.standard_normal(shape.heads).astype(np.float32)
    if shape.skipped_writes and case.real:
        # The cache holds these tokens already, as after a prefix hit.
        skipped = rng.permutation(case.real)[: -(-case.real // 2)]
        slots = arrays["slot_mapping"][skipped]
        for name in ("k_cache", "v_cache"):
            flat = arrays[name].reshape(-1, *arrays[name].shape[2:])
            flat[slots] = rng.standard_normal(flat[slots].shape)
        arrays["slot_mapping"][skipped] = -1
    return case


def quantise_caches(case: Case) -> None:
    """Turn the caches into int8; the scales of slots that nothing may read hold NaN."""
    for name in ("k", "v"):
        cache = case.arrays[f"{name}_cache"].astype(np.float64)
        known = np.isfinite(cache).all(axis=-1)
        codes, scales = stored(np.where(known[..., None], cache, 0.0), np.zeros(0, np.int8))
        case.arrays[f"{name}_cache"] = np.where(known[..., None], codes, np.int8(77))
        case.arrays[f"{name}_scale"] = np.where(known, scales, np.float32(np.nan))


def largest(array: Array) -> float:
    """The largest magnitude among finite entries, 0 for none."""
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max(initial=0.0))


def longest_row(array: Array) -> float:
    """The largest Euclidean length along the last axis, rows with NaN left out."""
    lengths = np.sqrt((array.astype(np.float64) ** 2).sum(axis=-1))
    return largest(lengths)


def output_bound(case: Case) -> float:
    """How far float32 arithmetic may take an output from the exact one, given the caches as stored.

    A score is a dot product summed in at least four lanes, after a norm and a turn of the query that round each
    term some ten times; |q . k| terms add up to |q| |k| at most. Its absolute error is a relative error of the
    key's weight, in numerator and denominator. A power of two adds 2^-22 to a weight and to each merge, the sums
    over n keys their own rounding. The output is a mean of values: everything scales with the largest value.
    """
    shape = case.shape
    longest = max((sum(one) for one in shape.sequences), default=0)
    queries = case.arrays["q"][: case.real, : shape.heads * shape.head_dim].reshape(-1, shape.head_dim)
    length = np.sqrt(shape.head_dim) * largest(case.arrays["q_norm"]) if shape.norm else longest_row(queries)
    magnitude = shape.scale * length * longest_row(case.arrays["k_cache"])
    score = CONFIDENCE * np.sqrt(shape.head_dim / 4 + 16) * UNIT * magnitude
    if shape.softcap:
        score += shape.softcap * 2.0**-20
    weight = 2 * score + (CONFIDENCE * np.sqrt(longest + 16) + 20 * (longest // 128 + 2)) * UNIT
    return float(weight * largest(case.arrays["v_cache"]))
