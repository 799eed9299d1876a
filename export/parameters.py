"""Weights by name alone: a capture knows a checkpoint's parameters and their shapes, never their content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.experts import of_experts
from export.sources import source_of
from export.tensors import RowSource, mismatch

#: What checkpoints call a parameter that transformers has renamed since: GPT-NeoX's head.
FORMER_NAMES = {"lm_head.weight": "embed_out.weight"}

#: Opens a checkpoint tensor by name; raises CheckpointError when there is none.
TensorReader = Callable[[str], RowSource]


class Parameter(RowSource):
    """A parameter that is not bound to a checkpoint: it stands in expressions and cannot be read."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.key = name
        self.name = name
        self.shape = shape

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        raise TypeError(f"{self.name} is not bound to a checkpoint")

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}


def bind(source: RowSource, tensor: TensorReader, constants: Mapping[str, NDArray[np.float32]]) -> RowSource:
    """The expression `source` over the tensors of a checkpoint; `constants` are arrays by their digest.

    Raises CheckpointError when a tensor is absent or its shape is not what the configuration says.
    """
    bound = source_of(source.recipe(), tensor, constants.__getitem__)
    if bound.shape != source.shape:
        raise mismatch(", ".join(tensor_names(source.recipe())), bound.shape, source.shape)
    return bound


def checked_reader(
    tensor: TensorReader,
    names: Iterable[str],
    shapes: Mapping[str, tuple[int, ...]],
    aliases: Mapping[str, tuple[str, ...]],
) -> TensorReader:
    """A reader by the model's parameter names that checks shapes and knows the spellings checkpoints use.

    names: the tensors that the checkpoint has. Of tied parameters it may hold any one (`aliases`), and a
    checkpoint of the bare model leaves the base model's prefix out ("wte.weight" for "transformer.wte.weight").
    Some names are older than transformers' present ones (`FORMER_NAMES`), and experts may lie apart
    (`export.experts`). Parameters of more than two axes are seen as matrices.
    """
    present = set(names)

    def read(name: str) -> RowSource:
        tied = aliases.get(name, (name,))
        former = (FORMER_NAMES[spelling] for spelling in tied if spelling in FORMER_NAMES)
        spellings = (*tied, *(spelling.partition(".")[2] for spelling in tied), *former)
        found = of_experts(name, shapes, present, tensor)
        if found is None:
            found = tensor(next((spelling for spelling in spellings if spelling in present), name))
        if tuple(found.shape) != shapes[name]:
            raise mismatch(name, tuple(found.shape), shapes[name])
        return found

    return read


def tensor_names(recipe: Any) -> list[str]:
    """The tensors that an expression's recipe reads."""
    if isinstance(recipe, list):
        return [name for part in recipe for name in tensor_names(part)]
    if not isinstance(recipe, dict):
        return []
    if recipe.get("op") == "tensor":
        return [recipe["name"]]
    return [name for part in recipe.values() for name in tensor_names(part)]
