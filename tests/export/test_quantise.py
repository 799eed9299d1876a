"""Quantisation against plain arithmetic, its bounds, its packing, and codes that a checkpoint brings along."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from numpy.typing import NDArray

from export import quantise
from export.quantise import QuantisedWeight
from export.sources import Concat
from export.tensors import QuantisedRows, StoredTensor
from ops.errors import CheckpointError
from ops.layout import Codes, QuantForm, unpack
from tests.export.sources import ArraySource, CodeSource

MATRICES = st_np.arrays(
    np.float32,
    st_np.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70),
    elements=st.floats(-1e4, 1e4, width=32),
)


def content(tensor: StoredTensor) -> NDArray[np.generic]:
    """A stored tensor as one array."""
    return np.concatenate([chunk.reshape(-1) for chunk in tensor.chunks()]).reshape(tensor.shape)


def stored(weight: QuantisedWeight) -> Codes:
    """The codes, scales and minima of a weight from its stored bytes alone."""
    codes = unpack(weight.form, content(weight).astype(np.uint8))
    minima = None if codes.minima is None else codes.minima[: weight.rows]
    return Codes(codes.values[: weight.rows], codes.scales[: weight.rows], minima)


def dequantise(weight: QuantisedWeight) -> NDArray[np.float32]:
    """The weight from its stored bytes alone."""
    return stored(weight).dequantised(weight.form.bits)[:, : weight.columns]


def step(weight: QuantisedWeight) -> NDArray[np.float32]:
    """The step of each weight: the magnitude of its group's scale."""
    return np.repeat(np.abs(stored(weight).scales), weight.form.group, axis=1)[:, : weight.columns]


@settings(max_examples=60, deadline=None)
@given(MATRICES, st.sampled_from([4, 8]), st.sampled_from([32, 64, 128]), st.booleans())
def test_every_weight_is_within_a_step(
    matrix: NDArray[np.float32], bits: Literal[4, 8], group: int, minima: bool
) -> None:
    weight = QuantisedWeight(ArraySource(matrix), QuantForm(bits, group, minima))
    got = dequantise(weight)
    # Around zero, codes reach -2^(bits-1) but only 2^(bits-1) - 1: the far end may lie a whole step away.
    slack = 1e-5 * np.abs(matrix) + 1e-36
    if minima:
        # The minimum and its sum with a product are rounded to float16 and float32.
        slack = slack + 2.0**-23 * np.abs(stored(weight).minima).max()
    assert (np.abs(got - matrix) <= step(weight) * (0.5 if minima else 1) + slack).all()
    assert np.array_equal(weight.dequantised_rows(0, weight.rows), got)


def test_inner_values_are_within_half_a_step() -> None:
    matrix = np.linspace(-1, 0.85, 64, dtype=np.float32).reshape(2, 32)
    weight = QuantisedWeight(ArraySource(matrix), QuantForm(4, 32))
    assert (np.abs(dequantise(weight) - matrix) <= step(weight) / 2 * (1 + 1e-5)).all()


def test_the_scale_is_the_signed_extreme_over_minus_half_the_range() -> None:
    matrix = np.zeros((2, 32), np.float32)
    matrix[0, 3], matrix[1, 5] = 2.0, -2.0
    weight = QuantisedWeight(ArraySource(matrix), QuantForm(4, 32))
    assert stored(weight).scales.ravel().tolist() == [-0.25, 0.25]
    assert np.array_equal(dequantise(weight), matrix)


def test_scales_in_float16_are_rounded_up_and_minima_down() -> None:
    """So that codes reach both ends of what they stand for."""
    matrix = np.random.default_rng(2).standard_normal((64, 64), dtype=np.float32)
    grouped = matrix.reshape(64, 2, 32)
    around = stored(QuantisedWeight(ArraySource(matrix), QuantForm(8, 32)))
    assert (np.abs(around.scales) * 128 >= np.abs(grouped).max(axis=2)).all()
    between = stored(QuantisedWeight(ArraySource(matrix), QuantForm(4, 32, minima=True)))
    assert between.minima is not None and (between.minima <= grouped.min(axis=2)).all()
    assert (between.minima + 15 * between.scales >= grouped.max(axis=2) * (1 - 1e-6)).all()


def test_a_last_group_that_is_not_full_is_padded_with_the_zero_code() -> None:
    weight = QuantisedWeight(ArraySource(np.ones((3, 40), np.float32)), QuantForm(8, 32))
    assert stored(weight).values[:, 1, 8:].tolist() == [[128] * 24] * 3


@pytest.mark.parametrize("minima", [False, True])
def test_groups_of_zeros_and_of_tiny_numbers_become_zero(minima: bool) -> None:
    matrix = np.zeros((1, 64), np.float32)
    matrix[0, 40] = 1e-40
    assert not dequantise(QuantisedWeight(ArraySource(matrix), QuantForm(8, 32, minima))).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_weights_that_no_scale_reaches_are_refused(bad: float) -> None:
    matrix = np.ones((4, 32), np.float32)
    matrix[2, 7] = bad
    with pytest.raises(CheckpointError, match="cannot be quantised"):
        content(QuantisedWeight(ArraySource(matrix), QuantForm(4, 32)))


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (CodeSource.random(8, 32, minima=False), QuantForm(8, 32)),
        (CodeSource.random(4, 32, minima=False), QuantForm(8, 32)),
        (CodeSource.random(4, 64, minima=False), QuantForm(4, 32)),
        (CodeSource.random(4, 32, minima=True), QuantForm(4, 32, minima=True)),
        (CodeSource.random(4, 32, minima=False), QuantForm(8, 32, minima=True)),
        (CodeSource.random(8, 16, minima=False), QuantForm(8, 16, scales="float32")),
    ],
)
def test_a_checkpoints_own_codes_are_kept(source: CodeSource, form: QuantForm) -> None:
    weight = QuantisedWeight(source, form)
    assert weight.passes_through
    assert np.array_equal(dequantise(weight), source.all())


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (CodeSource.random(4, 32, minima=True), QuantForm(4, 32)),
        (CodeSource.random(8, 32, minima=False), QuantForm(4, 32)),
        (CodeSource.random(8, 16, minima=False), QuantForm(8, 32)),
        (CodeSource.random(4, 32, minima=False), QuantForm(4, 64)),
    ],
)
def test_codes_that_do_not_fit_are_quantised_anew(source: CodeSource, form: QuantForm) -> None:
    weight = QuantisedWeight(source, form)
    assert not weight.passes_through
    assert (np.abs(dequantise(weight) - source.all()) <= step(weight) * (1 + 1e-5)).all()


def test_parts_of_different_forms_join_without_loss() -> None:
    """As where a file keeps the values of attention in more bits than queries and keys."""
    parts = [
        CodeSource.random(4, 32, minima=True),
        CodeSource.random(8, 16, minima=False),
        CodeSource.random(8, 64, minima=True),
    ]
    joined = Concat(parts)
    assert joined.quantised == QuantForm(8, 16, minima=True)
    weight = QuantisedWeight(joined, joined.quantised)
    assert weight.passes_through
    # A symmetric code c becomes c * scale - 128 * scale: the sum is rounded.
    assert np.abs(dequantise(weight) - joined.all()).max() <= 2.0**-23 * 256 * 5


def test_a_float_part_leaves_no_form_in_common() -> None:
    assert (
        Concat([CodeSource.random(4, 32, minima=True), ArraySource(np.ones((1, 128), np.float32))]).quantised
        is None
    )


def test_one_pass_over_the_source_is_enough() -> None:
    source = ArraySource(np.random.default_rng(0).standard_normal((300, 64), dtype=np.float32))
    content(QuantisedWeight(source, QuantForm(8, 32, minima=True)))
    assert source.rows_read == 300


def test_sizes_are_told_before_anything_is_read() -> None:
    source = ArraySource(np.ones((5, 96), np.float32))
    weight = QuantisedWeight(source, QuantForm(4, 64, minima=True))
    assert weight.nbytes == 16 * 2 * (32 + 2 + 2) and source.rows_read == 0


def test_chunks_are_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: rows of one tile never lie in two."""
    source = ArraySource(np.random.default_rng(0).standard_normal((100, 64), dtype=np.float32))
    weight = QuantisedWeight(source, QuantForm(4, 32))
    whole = content(weight)
    monkeypatch.setattr(quantise, "CHUNK_BYTES", 1)
    assert len(list(weight.chunks())) == 7 and np.array_equal(content(weight), whole)


def test_kept_rows_reject_a_reader_that_has_none() -> None:
    with pytest.raises(NotImplementedError):
        ArraySource(np.ones((1, 32), np.float32)).quantised_rows(0, 1)
    assert isinstance(CodeSource.random(4, 32, False).quantised_rows(0, 1), QuantisedRows)
