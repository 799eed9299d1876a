"""The interface of a lowering and what it yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from export.capture.captured import CapturedModel
from export.parameters import TensorReader
from export.quantise import QuantisedWeight
from export.recipe import Recipe, Role
from export.stored import FloatType
from export.tensors import StoredTensor
from rtcore.manifest import CacheGroup, CacheTensor


@dataclass(frozen=True)
class IntegerWeight:
    """A weight that a graph keeps in integers: its name in the captured graph, what it is for, the parameters
    that it is made of, and the quantised weight itself."""

    name: str
    role: Role
    parameters: tuple[str, ...]
    quantised: QuantisedWeight


@dataclass
class LoweredModel:
    """One precision for one target.

    step: the graph that an executor runs; its initialisers named in tensors have type and shape, but their
    content is still to be written. recipe: what a manifest records of it. linear_bytes: weights that one
    decode step of one sequence reads; expert_bytes: those of experts among them. quantised: the weights that are
    kept in integers. float_type: of all other weights and of activations.
    """

    step: ir.Model
    tensors: dict[str, StoredTensor]
    cache_groups: tuple[CacheGroup, ...]
    cache_tensors: tuple[CacheTensor, ...]
    recipe: dict[str, Any]
    linear_bytes: int = 0
    expert_bytes: int = 0
    quantised: list[IntegerWeight] = field(default_factory=list)
    float_type: FloatType = "float32"


class Lowering(ABC):
    """Writes a target's graphs from a captured model."""

    target: str

    @abstractmethod
    def lower(self, captured: CapturedModel, recipe: Recipe, tensor: TensorReader) -> LoweredModel:
        """The step graph and its tensors; `captured` is left as it is.

        tensor: opens a checkpoint tensor by parameter name. Raises CheckpointError for one that is absent or of
        another shape.
        """
