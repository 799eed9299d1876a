"""Captured tiny models, each captured once a process: a capture is what takes time in these tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

import export.capture
from export.capture import CapturedModel
from export.lowering import LoweredModel, lower
from export.recipe import Recipe
from tests.export.tiny_families import CONFIGS, ModelCheckpoint, random_model

torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """A tiny model, its configuration and its captured graph, which tests must not change (copy it)."""

    config: dict[str, Any]
    model: PreTrainedModel
    captured: CapturedModel

    @property
    def checkpoint(self) -> ModelCheckpoint:
        return ModelCheckpoint(self.model)

    def lower(self, recipe: Recipe, captured: CapturedModel | None = None) -> LoweredModel:
        """The step graph with the model's weights, of another graph than its own if one is given."""
        captured = captured or self.captured
        return lower(captured, recipe, captured.reader(self.checkpoint))


@cache
def case(name: str) -> Case:
    """The case of a name in `tiny_families.CONFIGS`."""
    config = CONFIGS[name]
    return Case(config, random_model(config), export.capture.capture(config))
