"""Semantic capture: a configuration becomes a graph of ai.ortolan nodes, without weights."""

from __future__ import annotations

from export.capture.capture import capture
from export.capture.captured import CapturedModel, LayerCache

__all__ = ["CapturedModel", "LayerCache", "capture"]
