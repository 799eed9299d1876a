"""The choices that `ortolan tune` tries: for kernels of the table, over grids as the launcher makes them."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")

from export.kernels.tune import FORMS, Sweep, _grid, best, sweeps
from export.kernels.tuning import Tiles, table

pytestmark = pytest.mark.export


@pytest.mark.parametrize("quick", [True, False])
def test_every_sweep_is_of_a_kernel_of_the_table_and_has_shapes(quick: bool) -> None:
    found = sweeps(quick)
    assert {sweep.kernel for sweep, _ in found} <= set(table())
    assert {"linear_row", "linear_tile_gated", "quant_tile", "quant_tile_gated"} <= {
        sweep.kernel for sweep, _ in found
    }
    for sweep, shapes in found:
        assert sweep.choices and shapes
        assert all(choice.rows >= shapes[0][0] for choice in sweep.choices)


@pytest.mark.parametrize("activation", ["", "_gated"])
@pytest.mark.parametrize("name", list(FORMS))
def test_what_is_swept_of_quantised_weights_is_what_the_table_holds(name: str, activation: str) -> None:
    """In its order, since the first choice that serves a launch is taken, with the same constants and warps."""
    swept = [sweep.choices for sweep, _ in sweeps(False) if sweep.kernel == name + activation]
    found = {(choices[0].rows, choices[0].columns): choices for choices in swept}
    known = table()[name + activation]["sm_90"]
    places = [list(found).index((one.rows, one.columns)) for one in known]
    assert places == sorted(places)
    for one in known:
        choices = found[one.rows, one.columns]
        assert all(choice.constants.keys() == one.constants.keys() for choice in choices)
        assert one in choices


@pytest.mark.parametrize(
    ("width", "steps", "programs", "grid"),
    [
        (4096, 16, 264, (32, 8, 1)),  # eight programs a tile, of two steps each
        (4096, 56, 264, (32, 8, 1)),
        (6144, 16, 264, (48, 4, 1)),  # five would leave one with a single step: four of four do
        (128256, 32, 264, (1002, 1, 1)),
        (64, 3, 264, (1, 3, 1)),
    ],
)
def test_programs_split_what_few_tiles_leave_idle(
    width: int, steps: int, programs: int, grid: tuple[int, int, int]
) -> None:
    choice = Tiles(constants={"BLOCK_N": 128, "BLOCK_M": 16, "PROGRAMS": programs})
    assert _grid(choice, 16, width, steps) == grid


def test_the_best_choice_is_that_of_the_least_product_of_times() -> None:
    first, second, third = (Tiles(warps=count) for count in (1, 2, 4))
    assert best([(first, [1.0, 9.0]), (second, [2.0, 2.0]), (third, [0.1, math.inf])])[0] == second
    assert Sweep("quant_tile", (first,), lambda *_: []).kernel == "quant_tile"
