"""Quantisation against plain arithmetic, its bounds, its packing, and codes that a checkpoint brings along."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from numpy.typing import NDArray

from export.quantise import QuantisedWeight
from export.tensors import QuantisedRows, StoredTensor
from ops.errors import CheckpointError
from tests.export.sources import ArraySource, CodeSource

MATRICES = st_np.arrays(
    np.float32,
    st_np.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70),
    elements=st.floats(-1e4, 1e4, width=32),
)


def content(tensor: StoredTensor | None) -> NDArray[np.generic]:
    """A stored tensor as one array."""
    if tensor is None:
        raise AssertionError("there is no such tensor")
    return np.concatenate([chunk.reshape(-1) for chunk in tensor.chunks()]).reshape(tensor.shape)


def unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Codes of the last axis, low nibble first."""
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return packed[..., :count]


def dequantise(weight: QuantisedWeight) -> NDArray[np.float32]:
    """The weight from its stored bytes alone."""
    values = unpack(content(weight.values), weight.bits, weight.group).astype(np.float32)
    zeros = np.float32(1 << (weight.bits - 1))
    if weight.zero_points is not None:
        zeros = unpack(content(weight.zero_points), weight.bits, weight.blocks)[:, :, None].astype(np.float32)
    grouped = (values - zeros) * content(weight.scales)[:, :, None]
    return grouped.reshape(weight.rows, -1)[:, : weight.columns].astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(MATRICES, st.sampled_from([4, 8]), st.sampled_from([32, 64, 128]), st.booleans())
def test_every_weight_is_within_a_step(matrix: NDArray[np.float32], bits: int, group: int, symmetric: bool) -> None:
    weight = QuantisedWeight(ArraySource(matrix), bits, group, symmetric)
    got = dequantise(weight)
    scale = np.repeat(np.abs(content(weight.scales)), group, axis=1)[:, : matrix.shape[1]]
    # Symmetric codes reach -2^(bits-1) but only 2^(bits-1) - 1: the far end may lie a whole step away.
    # A zero point is rounded too, which moves its group by up to half a step and may clip one end by as much.
    slack = 1e-5 * np.abs(matrix) + 1e-36
    assert (np.abs(got - matrix) <= scale + slack).all()
    assert np.array_equal(weight.dequantised_rows(0, weight.rows), got)


def test_inner_values_are_within_half_a_step() -> None:
    matrix = np.linspace(-1, 0.9, 64, dtype=np.float32).reshape(2, 32)
    weight = QuantisedWeight(ArraySource(matrix), 4, 32)
    assert np.abs(dequantise(weight) - matrix).max() <= content(weight.scales).max() / 2 * (1 + 1e-5)


def test_the_scale_is_the_signed_extreme_over_minus_half_the_range() -> None:
    matrix = np.zeros((2, 32), np.float32)
    matrix[0, 3], matrix[1, 5] = 2.0, -2.0
    weight = QuantisedWeight(ArraySource(matrix), 4, 32)
    assert content(weight.scales).ravel().tolist() == [-0.25, 0.25]
    assert np.array_equal(dequantise(weight), matrix)


def test_zero_points_are_packed_low_nibble_first_with_rows_padded_to_a_byte() -> None:
    matrix = np.concatenate([np.linspace(low, low + 1.5, 32) for low in (-1.5, -0.7, 0.0)]).astype(np.float32)[None]
    weight = QuantisedWeight(ArraySource(matrix), 4, 32, symmetric=False)
    assert content(weight.zero_points).tolist() == [[15 | 7 << 4, 0]]


def test_a_last_group_that_is_not_full_is_padded_with_the_zero_code() -> None:
    weight = QuantisedWeight(ArraySource(np.ones((3, 40), np.float32)), 8, 32)
    assert content(weight.values)[:, 1, 8:].tolist() == [[128] * 24] * 3


def test_groups_of_zeros_and_of_tiny_numbers_become_zero() -> None:
    matrix = np.zeros((1, 64), np.float32)
    matrix[0, 40] = 1e-40
    for symmetric in (True, False):
        assert not dequantise(QuantisedWeight(ArraySource(matrix), 8, 32, symmetric)).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(bad: float) -> None:
    matrix = np.ones((4, 32), np.float32)
    matrix[2, 7] = bad
    with pytest.raises(CheckpointError, match="cannot be quantised"):
        content(QuantisedWeight(ArraySource(matrix), 4, 32).values)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("source_bits", "source_group", "bits", "group"), [(8, 32, 8, 32), (4, 32, 8, 32), (4, 64, 4, 32)]
)
def test_a_checkpoints_own_codes_are_kept(
    source_bits: int, source_group: int, bits: int, group: int, symmetric: bool
) -> None:
    source = CodeSource.random(source_bits, source_group, minima=False)
    weight = QuantisedWeight(source, bits, group, symmetric)
    assert weight.passes_through
    assert np.array_equal(dequantise(weight), source.all())


@pytest.mark.parametrize(
    ("source_bits", "source_group", "minima", "bits", "group"),
    [(4, 32, True, 4, 32), (8, 32, False, 4, 32), (8, 16, False, 8, 32), (4, 32, False, 4, 64)],
)
def test_codes_that_do_not_fit_are_quantised_anew(
    source_bits: int, source_group: int, minima: bool, bits: int, group: int
) -> None:
    source = CodeSource.random(source_bits, source_group, minima)
    weight = QuantisedWeight(source, bits, group)
    assert not weight.passes_through
    scale = np.repeat(np.abs(content(weight.scales)), group, axis=1)
    assert (np.abs(dequantise(weight) - source.all()) <= scale * (1 + 1e-5)).all()


def test_one_pass_over_the_source_serves_all_three_tensors() -> None:
    source = ArraySource(np.random.default_rng(0).standard_normal((300, 64), dtype=np.float32))
    weight = QuantisedWeight(source, 8, 32, symmetric=False)
    parts = [content(weight.values), content(weight.scales), content(weight.zero_points)]
    assert source.rows_read == 300
    # Asked for alone they are the same, from another pass.
    alone = QuantisedWeight(source, 8, 32, symmetric=False)
    assert np.array_equal(content(alone.zero_points), parts[2])
    assert np.array_equal(content(alone.scales), parts[1])
    assert source.rows_read == 600


def test_sizes_are_told_before_anything_is_read() -> None:
    source = ArraySource(np.ones((5, 96), np.float32))
    weight = QuantisedWeight(source, 4, 64, symmetric=False)
    sizes = [part.nbytes for part in (weight.values, weight.scales, weight.zero_points) if part is not None]
    assert sizes == [5 * 2 * 32, 5 * 2 * 4, 5]
    assert source.rows_read == 0


@pytest.mark.export
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [96, 80])
def test_onnx_runtime_reads_the_layout(bits: int, symmetric: bool, columns: int) -> None:
    """MatMulNBits on the unit vectors gives back the dequantised matrix."""
    import onnxruntime
    from onnx import TensorProto, helper

    generator = np.random.default_rng(1)
    matrix = generator.standard_normal((24, columns), dtype=np.float32)
    weight = QuantisedWeight(ArraySource(matrix), bits, 32, symmetric)
    feeds = {"b": content(weight.values), "scales": content(weight.scales)}
    if weight.zero_points is not None:
        feeds["zeros"] = content(weight.zero_points)
    node = helper.make_node(
        "MatMulNBits", ["x", *feeds], ["y"], domain="com.microsoft",
        K=columns, N=24, bits=bits, block_size=32, accuracy_level=0,
    )  # fmt: skip
    types = {"b": TensorProto.UINT8, "scales": TensorProto.FLOAT, "zeros": TensorProto.UINT8}
    values = [
        helper.make_tensor(name, types[name], array.shape, array.tobytes(), raw=True)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 24])],
        values,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    got = session.run(None, {"x": np.eye(columns, dtype=np.float32)})[0].T
    # One product and sums of zeros: the result is the weight itself, but for how scale and zero are combined.
    expected = weight.dequantised_rows(0, 24)
    assert np.abs(got - expected).max() <= np.abs(expected).max() * 2**-20


def test_kept_rows_reject_a_reader_that_has_none() -> None:
    with pytest.raises(NotImplementedError):
        ArraySource(np.ones((1, 32), np.float32)).quantised_rows(0, 1)
    assert isinstance(CodeSource.random(4, 32, False).quantised_rows(0, 1), QuantisedRows)
