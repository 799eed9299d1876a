"""PagedAttention against its definition: shapes, dtypes, edges, poisoned memory, the same bits in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

from tests.ops.attention_case import UNIT, Case, Shape, largest, make_case, output_bound
from tests.ops.runner import KERNELS

DECODE = ((0, 1), (15, 1), (16, 1), (127, 1), (128, 1), (300, 1))
PREFILL = ((0, 37), (20, 13), (120, 20))
MIXED = ((40, 1), (7, 1), (0, 5), (120, 14))


def check(case: Case, *, kernels: str = "auto", threads: int = 2) -> None:
    """Runs the operator; compares what it stored and what it returned with the definition."""
    before, exact = case.copy(), case.copy()
    exact.reference(write=True)
    got = case.run(kernels=kernels, threads=threads)

    slots = before.arrays["slot_mapping"]
    written = np.zeros(before.arrays["k_cache"].shape[0] * before.shape.block_size, dtype=bool)
    written[slots[slots >= 0]] = True
    for name in ("k_cache", "v_cache"):
        stored, old, wanted = (one.arrays[name].reshape(len(written), -1) for one in (case, before, exact))
        np.testing.assert_array_equal(stored[~written], old[~written])
        # float32 norm and turn, then rounding to the cache's type, which may fall to the other side of a tie.
        unit = 2.0**-10 if before.shape.half else 12 * UNIT
        np.testing.assert_allclose(
            stored[written].astype(np.float64), wanted[written], rtol=0, atol=unit * largest(wanted[written])
        )
    # The definition over the cache as the kernel stored it: attention is to K and V as stored.
    want = case.reference(write=False)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=0, atol=output_bound(case))
    assert (got[case.real :] == 0).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("sequences", [DECODE, PREFILL, MIXED, ((0, 1),)])
def test_batches(sequences: tuple[tuple[int, int], ...], half: bool, kernels: str) -> None:
    check(make_case(Shape(sequences, half=half)), kernels=kernels)


VARIANTS = {
    "packed": Shape(MIXED, packed=True),
    "one head each": Shape(MIXED, heads=2, kv_heads=2),
    "one key head for all": Shape(MIXED, heads=5, kv_heads=1),
    "more heads than a tile": Shape(((3, 2), (140, 1)), heads=70, kv_heads=1, packed=True),
    "values wider": Shape(MIXED, head_dim=24, value_dim=40, rotary_dims=8, packed=True),
    "values narrower": Shape(MIXED, head_dim=48, value_dim=8, rotary_dims=16),
    "odd dims": Shape(MIXED, head_dim=10, value_dim=7, rotary_dims=4),
    "model dims": Shape(MIXED, head_dim=64, value_dim=64, rotary_dims=64, heads=9, kv_heads=3, packed=True),
    "long dims": Shape(((150, 1), (0, 6)), head_dim=256, value_dim=256, rotary_dims=128),
    "window of one": Shape(MIXED, window=1),
    "window shorter than a block": Shape(MIXED, window=5),
    "window of a block": Shape(MIXED, window=16),
    "window over chunks": Shape(((400, 1), (255, 1), (256, 10), (0, 140)), window=130),
    "window longer than all": Shape(MIXED, window=4096),
    "soft-cap": Shape(MIXED, softcap=2.0),
    "sinks": Shape(MIXED, sinks=True),
    "norm": Shape(MIXED, norm=True),
    "norm of odd dims": Shape(MIXED, norm=True, head_dim=10, value_dim=7, rotary_dims=4),
    "partial RoPE": Shape(MIXED, rotary_dims=6),
    "interleaved RoPE": Shape(MIXED, interleaved=True),
    "partial interleaved RoPE": Shape(MIXED, rotary_dims=6, interleaved=True),
    "no RoPE": Shape(MIXED, rotary_dims=0),
    "blocks of one": Shape(MIXED, block_size=1),
    "odd blocks": Shape(MIXED, block_size=7),
    "blocks over chunks": Shape(MIXED, block_size=200),
    "skipped writes": Shape(MIXED, skipped_writes=True),
    "padding": Shape(MIXED, padding_tokens=5, padding_sequences=3),
    "padding, packed": Shape(MIXED, padding_tokens=5, padding_sequences=3, packed=True),
    "nothing but padding": Shape((), padding_tokens=4, padding_sequences=2),
    "no tokens": Shape(()),
    "everything": Shape(
        MIXED, packed=True, window=60, softcap=5.0, sinks=True, norm=True, rotary_dims=6, interleaved=True,
        padding_tokens=2, padding_sequences=1, skipped_writes=True, value_dim=24,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, half: bool, kernels: str) -> None:
    check(make_case(replace(VARIANTS[variant], half=half), seed=1), kernels=kernels)


shapes = st.builds(
    Shape,
    sequences=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=5).map(tuple),
    heads=st.sampled_from([2, 4, 8]),
    kv_heads=st.sampled_from([1, 2]),
    head_dim=st.integers(2, 40),
    value_dim=st.integers(1, 40),
    rotary_dims=st.sampled_from([0, 2]),
    block_size=st.sampled_from([1, 5, 16, 32]),
    window=st.sampled_from([0, 1, 9, 130]),
    softcap=st.sampled_from([0.0, 3.0]),
    interleaved=st.booleans(),
    norm=st.booleans(),
    sinks=st.booleans(),
    packed=st.booleans(),
    half=st.booleans(),
    padding_tokens=st.integers(0, 3),
    padding_sequences=st.integers(0, 2),
    skipped_writes=st.booleans(),
)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**16), kernels=st.sampled_from(KERNELS))
def test_random_shapes(shape: Shape, seed: int, kernels: str) -> None:
    check(make_case(shape, seed), kernels=kernels)


def test_positions_choose_rope_rows_only() -> None:
    """The place in the cache follows from lengths; positions may start elsewhere."""
    case = make_case(Shape(((20, 3), (0, 4))))
    case.arrays["rope_table"] = np.roll(case.arrays["rope_table"], 2, axis=0)
    shifted = case.copy()
    shifted.arrays["positions"] = shifted.arrays["positions"] + 2
    shifted.arrays["rope_table"] = np.concatenate([case.arrays["rope_table"][-2:], case.arrays["rope_table"]])
    np.testing.assert_array_equal(case.run(), shifted.run())


def test_a_wrong_window_scale_or_position_is_seen() -> None:
    """A control: the bound is tight enough to tell a wrong attribute by its result."""
    wide = Shape(((60, 1), (0, 40)), head_dim=64, value_dim=64, rotary_dims=64, window=31, scale=0.125)
    case = replace(make_case(wide), shape=replace(wide, window=30))
    got = case.run()
    limit = 5 * output_bound(case)
    for wrong in (wide, replace(case.shape, scale=0.126), replace(case.shape, softcap=20.0)):
        assert largest(replace(case, shape=wrong).reference(write=False) - got) > limit
    case.arrays["positions"] = np.maximum(case.arrays["positions"] - 1, 0)
    assert largest(case.reference(write=False) - got) > limit


def select(case: Case, sequences: list[int]) -> Case:
    """The same problem for some of its sequences, in that order."""
    starts = case.arrays["query_start"]
    rows = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in sequences])
    counts = [starts[s + 1] - starts[s] for s in sequences]
    part = case.copy()
    for name in ("q", "k", "v", "slot_mapping", "positions"):
        part.arrays[name] = case.arrays[name][rows]
    for name in ("block_tables", "seq_lens"):
        part.arrays[name] = case.arrays[name][sequences]
    part.arrays["query_start"] = np.cumsum([0, *counts]).astype(np.int32)
    part.arrays["plan"][4:] = [len(rows), len(sequences)]
    return part


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("half", [False, True])
def test_bits_do_not_depend_on_company_or_threads(half: bool, kernels: str) -> None:
    rng = np.random.default_rng(5)
    short = [(int(rng.integers(0, 900)), int(rng.integers(1, 4))) for _ in range(10)]
    sequences = (*short, (300, 90), (2000, 1))
    case = make_case(Shape(sequences, half=half, head_dim=32, value_dim=32, rotary_dims=32, window=700), seed=6)
    together = case.copy().run(kernels=kernels)
    starts = case.arrays["query_start"]
    for threads in (1, 2):
        np.testing.assert_array_equal(case.copy().run(kernels=kernels, threads=threads), together)
        for _ in range(6):
            chosen = [int(s) for s in rng.permutation(len(sequences))[: rng.integers(1, len(sequences))]]
            got = select(case, chosen).run(kernels=kernels, threads=threads)
            want = np.concatenate([together[starts[s] : starts[s + 1]] for s in chosen])
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_bits_do_not_depend_on_prefill_chunks(chunk: int, half: bool, kernels: str) -> None:
    shape = Shape(((0, 300),), half=half, window=150, softcap=4.0, sinks=True, norm=True)
    case = make_case(shape)
    whole = case.copy().run(kernels=kernels)
    pieces = []
    for start in range(0, 300, chunk):
        end = min(300, start + chunk)
        step = replace(case, arrays=dict(case.arrays))  # the caches are shared by all steps
        for name in ("q", "k", "v", "slot_mapping", "positions"):
            step.arrays[name] = case.arrays[name][start:end]
        step.arrays["query_start"] = np.array([0, end - start], dtype=np.int32)
        step.arrays["seq_lens"] = np.array([end], dtype=np.int32)
        step.arrays["plan"] = np.array([0, 0, 0, 0, end - start, 1], dtype=np.int32)
        pieces.append(step.run(kernels=kernels))
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("half", [False, True])
def test_paths_agree(half: bool) -> None:
    """Each path is within the bound of the exact result, so two of them are within twice that.

    All attend to what the first one stored: two paths may store a key next to a tie one unit apart.
    """
    case = make_case(Shape(MIXED, half=half, norm=True, sinks=True, head_dim=64, value_dim=64), seed=9)
    want = case.run(kernels=KERNELS[0])
    case.arrays["slot_mapping"][:] = -1
    for kernels in KERNELS[1:]:
        np.testing.assert_allclose(case.copy().run(kernels=kernels), want, rtol=0, atol=2 * output_bound(case))


def test_a_sequence_with_nan_leaves_others_alone() -> None:
    case = make_case(Shape(((3, 4), (50, 1), (0, 9))))
    clean = case.copy().run()
    for name in ("q", "k", "v"):
        case.arrays[name][4] = np.nan
    got = case.run()
    assert np.isnan(got[4]).all()
    np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))
