"""CopyBlocks against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

from ops.reference.copy_blocks import copy_blocks
from tests.ops.runner import REFUSED, Array, run


def blocks(count: int, half: bool, dim: int = 3) -> Array:
    dtype = np.float16 if half else np.float32
    return np.random.default_rng(count).standard_normal((count, 4, 2, dim)).astype(dtype)


def numbers(*values: int) -> Array:
    return np.array(values, dtype=np.int32)


@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8), half=st.booleans())
def test_pairs_in_order(pairs: list[tuple[int, int]], half: bool) -> None:
    """Chains too: a block may be the source of a later pair, or its own copy."""
    cache = blocks(5, half)
    want = cache.copy()
    source, destination = numbers(*(one for one, _ in pairs)), numbers(*(two for _, two in pairs))
    copy_blocks(want, source, destination)
    out = run("CopyBlocks", {"cache": cache, "source": source, "destination": destination}, {})["cache_out"]
    np.testing.assert_array_equal(cache, want)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("half", [False, True])
def test_blocks_larger_than_a_slice(half: bool) -> None:
    cache = blocks(3, half, dim=5001)
    want = cache.copy()
    copy_blocks(want, numbers(2, 0), numbers(0, 1))
    run("CopyBlocks", {"cache": cache, "source": numbers(2, 0), "destination": numbers(0, 1)}, {})
    np.testing.assert_array_equal(cache, want)


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        (numbers(0, 5), numbers(1, 1), r"input source\[1\] is block 5, but the cache has 5"),
        (numbers(0), numbers(-1), r"input destination\[0\] is block -1"),
        (numbers(0), numbers(1, 2), r"input source has shape \[1\] and destination \[2\]"),
    ],
)
def test_refusals_write_nothing(source: Array, destination: Array, message: str) -> None:
    cache = blocks(5, False)
    before = cache.copy()
    with pytest.raises(REFUSED, match="CopyBlocks: " + message):
        run("CopyBlocks", {"cache": cache, "source": source, "destination": destination}, {})
    np.testing.assert_array_equal(cache, before)


def test_separate_buffers_are_refused() -> None:
    inputs = {"cache": blocks(5, False), "source": numbers(0), "destination": numbers(1)}
    with pytest.raises(REFUSED, match="bind the same OrtValue"):
        run("CopyBlocks", inputs, {}, shared=False)
