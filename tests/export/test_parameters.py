"""Reading a checkpoint by the model's parameter names, in whichever spelling the checkpoint uses."""

from __future__ import annotations

import numpy as np
import pytest

from export.parameters import checked_reader
from export.tensors import RowSource
from ops.errors import CheckpointError
from tests.export.sources import ArraySource

SHAPES = {"transformer.wte.weight": (4, 2), "lm_head.weight": (4, 2), "norm.weight": (2,)}
TIED = {"transformer.wte.weight": ("transformer.wte.weight", "lm_head.weight")}


@pytest.mark.parametrize(
    ("asked", "held", "aliases"),
    [
        ("transformer.wte.weight", "transformer.wte.weight", {}),
        ("transformer.wte.weight", "wte.weight", {}),
        ("transformer.wte.weight", "lm_head.weight", TIED),
        ("lm_head.weight", "embed_out.weight", {}),
    ],
)
def test_every_spelling_is_found(asked: str, held: str, aliases: dict[str, tuple[str, ...]]) -> None:
    array = ArraySource(np.zeros((4, 2), np.float32), held)
    opened: list[str] = []

    def tensor(name: str) -> RowSource:
        opened.append(name)
        return array

    assert checked_reader(tensor, [held, "other"], SHAPES, aliases)(asked) is array
    assert opened == [held]


def test_another_shape_is_refused() -> None:
    read = checked_reader(lambda name: ArraySource(np.zeros((4, 3), np.float32)), ["norm.weight"], SHAPES, {})
    with pytest.raises(
        CheckpointError, match=r"norm.weight has shape \[4, 3\], where the configuration needs \[2\]"
    ):
        read("norm.weight")


def test_what_is_absent_is_asked_for_by_its_own_name() -> None:
    def tensor(name: str) -> RowSource:
        raise CheckpointError(f"no {name}")

    with pytest.raises(CheckpointError, match=r"no norm.weight"):
        checked_reader(tensor, ["wte.weight"], SHAPES, {})("norm.weight")
