"""Random weights: the same for a seed and a name however they are read, as an untrained model has them."""

from __future__ import annotations

import numpy as np
import pytest

from export.checkpoint.random import RandomCheckpoint
from ops.errors import CheckpointError, ConfigError

SHAPES = {
    "model.embed_tokens.weight": (5000, 300),
    "model.layers.0.mlp.up_proj.weight": (700, 300),
    "model.layers.0.mlp.up_proj.bias": (700,),
    "model.norm.weight": (300,),
}


def make(seed: int = 7, model_type: str = "llama", **config: object) -> RandomCheckpoint:
    return RandomCheckpoint({"model_type": model_type, **config}, SHAPES, seed)


def test_any_rows_are_those_of_the_whole() -> None:
    source = make().tensor("model.embed_tokens.weight")
    whole = source.all()
    assert whole.shape == (5000, 300) and whole.dtype == np.float32
    for start, stop in ((0, 1), (870, 875), (873, 874), (1000, 4321), (4999, 5000), (12, 12)):
        assert np.array_equal(source.rows(start, stop), whole[start:stop])


def test_numbers_depend_on_seed_and_name_and_on_nothing_else() -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.array_equal(make().tensor(name).all(), make().tensor(name).all())
    assert not np.array_equal(make().tensor(name).all(), make(seed=8).tensor(name).all())
    other = RandomCheckpoint({"model_type": "llama"}, {name: SHAPES[name]}, 7)
    assert np.array_equal(make().tensor(name).all(), other.tensor(name).all())
    assert not np.array_equal(make().tensor(name).rows(0, 9), make().tensor("model.embed_tokens.weight").rows(0, 9))


def test_first_numbers_never_change() -> None:
    """A bundle of random weights is reproducible from its seed."""
    first = make().tensor("model.embed_tokens.weight").rows(0, 1)[0, :3]
    assert first.tolist() == pytest.approx([-0.02043348, -0.007764212, -0.01031889], rel=1e-6)


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_the_spread_is_what_the_configuration_says(std: float) -> None:
    weights = make(initializer_range=std).tensor("model.embed_tokens.weight").all()
    # 1.5 million draws: the standard error of their deviation is std / sqrt(3e6).
    assert weights.std() == pytest.approx(std, abs=5 * std / np.sqrt(2 * weights.size))
    assert abs(weights.mean()) < 5 * std / np.sqrt(weights.size)


def test_norms_are_neutral_and_biases_zero() -> None:
    assert (make().tensor("model.norm.weight").all() == 1).all()
    assert (make(model_type="gemma3_text").tensor("model.norm.weight").all() == 0).all()
    assert (make().tensor("model.layers.0.mlp.up_proj.bias").all() == 0).all()


def test_the_digest_tells_seeds_apart() -> None:
    assert make().sha256() == make().sha256() != make(seed=8).sha256()


def test_unknown_names_and_seeds_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no parameter 'x'"):
        make().tensor("x")
    from export.checkpoint.open import seed_of

    assert seed_of("random:12") == 12
    for bad in ("random", "random:", "random:-1", "random:x", "12", "random:²"):
        with pytest.raises(ConfigError, match="names no random weights"):
            seed_of(bad)
