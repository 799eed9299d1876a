"""The weights of experts, from checkpoints that keep them together, apart, or gate and up apart."""

from __future__ import annotations

import numpy as np
import pytest

from export.experts import of_experts
from export.parameters import checked_reader
from export.tensors import RowSource
from ops.errors import CheckpointError
from tests.export.sources import ArraySource

EXPERTS, INNER, HIDDEN = 3, 4, 6
LAYER = "model.layers.7"
GATE_UP, DOWN = f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj"
ROUTER = f"{LAYER}.mlp.gate.weight"
SHAPES = {GATE_UP: (EXPERTS * 2 * INNER, HIDDEN), DOWN: (EXPERTS * HIDDEN, INNER), ROUTER: (EXPERTS, HIDDEN)}
_RANDOM = np.random.default_rng(5)
GATE, UP = (_RANDOM.standard_normal((EXPERTS, INNER, HIDDEN)).astype(np.float32) for _ in range(2))
OUT = _RANDOM.standard_normal((EXPERTS, HIDDEN, INNER)).astype(np.float32)
WANTED = {
    GATE_UP: np.concatenate([GATE, UP], axis=1).reshape(SHAPES[GATE_UP]),
    DOWN: OUT.reshape(SHAPES[DOWN]),
}


def apart(mixture: str, gate: str, up: str, down: str) -> dict[str, np.ndarray]:
    return {
        f"{LAYER}.{mixture}.experts.{expert}.{part}.weight": array[expert]
        for part, array in ((gate, GATE), (up, UP), (down, OUT))
        for expert in range(EXPERTS)
    }


STORED = {
    "a tensor for each expert": apart("mlp", "gate_proj", "up_proj", "down_proj"),
    "Mixtral's names": apart("block_sparse_moe", "w1", "w3", "w2"),
    "all experts of each part": {
        f"{LAYER}.mlp.experts.{part}_proj.weight": array.reshape(-1, array.shape[2])
        for part, array in (("gate", GATE), ("up", UP), ("down", OUT))
    },
    "as transformers has them": WANTED,
}


class Checkpoint:
    """Arrays by name, and the most rows that were asked of one at a time."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def tensor(self, name: str) -> RowSource:
        if name not in self.arrays:
            raise CheckpointError(f"no {name}")
        return ArraySource(self.arrays[name], name)

    def read(self, name: str) -> RowSource:
        return checked_reader(self.tensor, self.arrays, SHAPES, {})(name)


@pytest.mark.parametrize("kept", STORED)
def test_every_way_of_keeping_experts_gives_the_same_weights(kept: str) -> None:
    checkpoint = Checkpoint(STORED[kept])
    for name, wanted in WANTED.items():
        source = checkpoint.read(name)
        assert source.shape == wanted.shape
        assert np.array_equal(source.all(), wanted)
        for start in range(0, len(wanted), 5):
            assert np.array_equal(source.rows(start, start + 3), wanted[start : start + 3])


@pytest.mark.parametrize("kept", STORED)
def test_a_skeleton_knows_them_by_one_name(kept: str) -> None:
    for name in WANTED:
        assert Checkpoint(STORED[kept]).read(name).recipe() == {"op": "tensor", "name": name}


def test_mixtrals_router_is_found() -> None:
    router = np.ones((EXPERTS, HIDDEN), np.float32)
    checkpoint = Checkpoint({f"{LAYER}.block_sparse_moe.gate.weight": router})
    assert np.array_equal(checkpoint.read(ROUTER).all(), router)


def test_a_missing_expert_is_named() -> None:
    arrays = dict(STORED["a tensor for each expert"])
    del arrays[f"{LAYER}.mlp.experts.2.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"no model.layers.7.mlp.experts.2.up_proj.weight"):
        Checkpoint(arrays).read(GATE_UP)


@pytest.mark.parametrize(
    ("kept", "name", "param"),
    [
        ("a tensor for each expert", f"{LAYER}.mlp.experts.1.gate_proj.weight", GATE_UP),
        ("all experts of each part", f"{LAYER}.mlp.experts.up_proj.weight", GATE_UP),
        ("Mixtral's names", f"{LAYER}.block_sparse_moe.experts.2.w2.weight", DOWN),
        ("as transformers has them", DOWN, DOWN),
    ],
)
def test_a_tensor_of_another_shape_is_named(kept: str, name: str, param: str) -> None:
    arrays = dict(STORED[kept])
    arrays[name] = arrays[name][:-1]
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(arrays).read(param)
    assert caught.value.param == name


def test_other_parameters_are_none_of_them() -> None:
    for name in ("model.layers.7.mlp.down_proj.weight", "model.norm.weight", GATE_UP):
        assert of_experts(name, SHAPES, set(), Checkpoint({}).tensor) is None
