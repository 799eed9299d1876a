"""Expressions over weights: any rows are those of the whole, and a recipe builds the same again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.sources import Affine, Concat, Constant, Regrouped, RowSlice, Transposed, Unit, row_chunks, source_of
from export.stored import Plain, StoredReader
from export.tensors import RowSource
from ops.errors import CheckpointError
from ops.layout import QuantForm
from tests.export.sources import ArraySource, CodeSource

A = ArraySource(np.arange(96, dtype=np.float32).reshape(12, 8), "a")
B = ArraySource(np.arange(1000, 1048, dtype=np.float32).reshape(6, 8), "b")
SQUARE = ArraySource(np.arange(64, dtype=np.float32).reshape(8, 8), "square")
TENSORS = {"a": A, "b": B, "square": SQUARE, "q": CodeSource.random(8, 32, False, rows=12, columns=64)}
TABLE = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)


def rebuilt(source: RowSource) -> RowSource:
    return source_of(source.recipe(), TENSORS.__getitem__, lambda digest: TABLE)


CASES: dict[str, tuple[RowSource, NDArray[np.float32]]] = {
    "concat": (Concat([A, B, A]), np.concatenate([A.array, B.array, A.array])),
    "slice": (RowSlice(A, 3, 9), A.array[3:9]),
    "transpose": (Transposed(A), A.array.T),
    "twice": (Transposed(Transposed(A)), A.array),
    "affine": (Affine(A, scale=2.0, offset=1.0), A.array * 2 + 1),
    "constant": (Constant(TABLE), TABLE),
    "unit": (Unit(A), np.array([2.0**-7], np.float32)),
    "unit of a power": (Unit(Affine(B, scale=0.0, offset=-0.25)), np.array([2.0], np.float32)),
    "unit of zeros": (Unit(Affine(B, scale=0.0)), np.ones(1, np.float32)),
    "regroup": (Regrouped(A, 2, 3, 2), A.array.reshape(2, 3, 2, 8).swapaxes(1, 2).reshape(12, 8)),
    "heads": (Regrouped(A, 1, 2, 3, 2), A.array.reshape(2, 3, 2, 8).swapaxes(0, 1).reshape(12, 8)),
    "nested": (
        RowSlice(Concat([Transposed(SQUARE), Affine(B, offset=-1.0)]), 5, 11),
        np.concatenate([SQUARE.array.T, B.array - 1])[5:11],
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_rows_are_those_of_the_whole(name: str, data: st.DataObject) -> None:
    source, expected = CASES[name]
    start = data.draw(st.integers(0, expected.shape[0] - 1))
    stop = data.draw(st.integers(start + 1, expected.shape[0]))
    assert source.shape == expected.shape
    assert np.array_equal(source.rows(start, stop), expected[start:stop])
    assert np.array_equal(source.all(), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_builds_the_same_again(name: str) -> None:
    source, expected = CASES[name]
    again = rebuilt(source)
    assert again.key == source.key
    assert np.array_equal(again.all(), expected)


def test_keys_tell_contents_apart() -> None:
    keys = {source.key for source, _ in CASES.values()}
    assert len(keys) == len(CASES)
    assert Affine(A, offset=1.0).key != Affine(A, offset=2.0).key
    assert Constant(TABLE).key != Constant(TABLE + 1).key
    assert Concat([A, B]).key == Concat([A, B]).key != Concat([B, A]).key


def test_moved_rows_stay_quantised() -> None:
    codes = TENSORS["q"]
    for source in (Regrouped(codes, 2, 3, 2), Concat([codes, codes]), RowSlice(codes, 2, 9)):
        assert source.quantised == QuantForm(8, 32, False, "float16")
        part = source.quantised_rows(1, 6)
        values = (part.values.astype(np.float32) - 128) * np.repeat(part.scales, 32, axis=1)
        assert np.array_equal(values, source.rows(1, 6))
    for source in (
        Affine(codes, scale=2.0),
        Transposed(codes),
        Concat([codes, ArraySource(np.zeros((4, 64), np.float32), "plain")]),
    ):
        assert source.quantised is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Concat([A, TENSORS["q"]]),
        lambda: RowSlice(A, 5, 13),
        lambda: RowSlice(A, 5, 5),
        lambda: Regrouped(A, 5, 1, 2),
        lambda: Transposed(Constant(TABLE[0])),
        lambda: Constant(np.float32(1)),
    ],
)
def test_what_does_not_fit_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot join|are not|only a matrix|at least one axis"):
        make()


@pytest.mark.parametrize("recipe", [{"op": "steal"}, {"op": "slice"}, {"op": "tensor", "name": "zzz"}, {}])
def test_foreign_recipes_are_refused(recipe: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        source_of(recipe, TENSORS.__getitem__, lambda digest: TABLE)
    with pytest.raises((KeyError, ValueError)):
        StoredReader(TENSORS.__getitem__, lambda digest: TABLE).stored(recipe)


def test_plain_tensors_come_in_chunks_of_their_type() -> None:
    wide = ArraySource(np.ones((3, 9 << 20), np.float32))
    chunks = list(Plain(wide).chunks())
    assert [chunk.shape[0] for chunk in chunks] == [1, 1, 1]
    half = Plain(A, "float16")
    assert half.nbytes == 12 * 8 * 2
    assert np.concatenate(list(half.chunks())).dtype == np.float16
    assert half.key != Plain(A).key


def test_numbers_beyond_float16_are_refused_rather_than_made_infinite() -> None:
    with pytest.raises(CheckpointError, match="does not fit float16"):
        list(Plain(ArraySource(np.full((2, 2), 70000, np.float32)), "float16").chunks())


@given(rows=st.integers(1, 300), width=st.integers(0, 50), size=st.integers(1, 4000), unit=st.integers(1, 70))
def test_chunks_cover_all_rows_once(rows: int, width: int, size: int, unit: int) -> None:
    bounds = list(row_chunks(ArraySource(np.zeros((rows, width), np.float32)), size, unit))
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == rows
    assert all(start % unit == 0 for start, _ in bounds)
    assert all(stop - start <= unit or (stop - start) * width * 4 <= size for start, stop in bounds)
