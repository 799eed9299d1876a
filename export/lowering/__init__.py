"""Lowerings: one a target, each writes that target's graphs from the semantic one."""

from __future__ import annotations

from export.capture.captured import CapturedModel
from export.lowering.base import LoweredModel, Lowering
from export.lowering.cpu import CpuLowering
from export.lowering.cuda import CudaLowering
from export.parameters import TensorReader
from export.recipe import Recipe
from ops.errors import ConfigError

__all__ = ["TARGETS", "LoweredModel", "lower"]

TARGETS: dict[str, type[Lowering]] = {lowering.target: lowering for lowering in (CpuLowering, CudaLowering)}


def lower(captured: CapturedModel, recipe: Recipe, tensor: TensorReader, target: str = "cpu") -> LoweredModel:
    """The graphs of one precision for one target; `captured` is left as it is, to be lowered again.

    tensor: opens a checkpoint tensor by parameter name (`CapturedModel.reader` makes one that knows other
    spellings and checks shapes). Raises ConfigError for an unknown target, CheckpointError for a tensor that is
    absent or has another shape.
    """
    lowering = TARGETS.get(target)
    if lowering is None:
        raise ConfigError(
            f"There is no target {target!r}.", remedy=f"Choose from {', '.join(TARGETS)}.", param="target"
        )
    return lowering().lower(captured, recipe, tensor)
