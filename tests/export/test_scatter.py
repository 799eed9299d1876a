"""Scattering rows of an expression back into its parameters undoes reading them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.parameters import Parameter, bind
from export.scatter import scatter
from export.sources import Affine, Concat, Constant, Regrouped, RowSlice, Transposed
from export.tensors import RowSource
from tests.export.sources import ArraySource

SHAPES = {"a": (12, 5), "b": (6, 5), "c": (5, 6)}


def _expressions() -> dict[str, RowSource]:
    a, b, c = (Parameter(name, shape) for name, shape in SHAPES.items())
    return {
        "concat": Concat([a, b, Transposed(c)]),
        "swapped": Concat([RowSlice(a, 6, 12), RowSlice(a, 0, 6)]),
        "regrouped": Regrouped(a, 1, 2, 3, 2),
        "affine": Affine(b, 2.0, 1.0),
        "constant": Concat([a, Constant(np.zeros((2, 5), np.float32))]),
    }


@given(st.sampled_from(sorted(_expressions())), st.integers(1, 7), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_scatter_undoes_reading(name: str, step: int, seed: int) -> None:
    expression = _expressions()[name]
    random = np.random.default_rng(seed)
    arrays = {key: random.normal(size=shape).astype(np.float32) for key, shape in SHAPES.items()}
    constants = {}
    if name == "constant":
        constant = Constant(np.zeros((2, 5), np.float32))
        constants[constant.recipe()["sha256"]] = constant.array
    bound = bind(expression, lambda key: ArraySource(arrays[key], key), constants)
    found = {key: np.full(shape, np.nan, np.float32) for key, shape in SHAPES.items()}
    for start in range(0, bound.shape[0], step):
        rows = np.arange(start, min(start + step, bound.shape[0]))
        scatter(expression.recipe(), rows, bound.rows(int(rows[0]), int(rows[-1]) + 1), found)
    read = {"concat": "abc", "swapped": "a", "regrouped": "a", "affine": "b", "constant": "a"}[name]
    for key in read:
        np.testing.assert_allclose(found[key], arrays[key], rtol=1e-6, atol=1e-6)
    for key in SHAPES.keys() - set(read):
        assert np.isnan(found[key]).all()


def test_an_operation_without_a_way_back_is_refused() -> None:
    with pytest.raises(ValueError, match="'steal'"):
        scatter({"op": "steal"}, np.arange(1), np.zeros((1, 5), np.float32), {})
