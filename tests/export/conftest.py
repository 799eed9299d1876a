"""What takes seconds in an export and is the same each time is done once a process."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

PATCHED = all(find_spec(name) is not None for name in ("torch", "transformers", "onnx", "onnxscript"))


@pytest.fixture(scope="session", autouse=True)
def capture_once() -> Iterator[None]:
    """Captures of equal configurations, by whatever command: a lowering leaves them as they are."""
    if not PATCHED:
        yield
        return
    import export.capture

    known: dict[str, Any] = {}
    original = export.capture.capture

    def capture(config: dict[str, Any], context_length: int | None = None) -> Any:
        key = json.dumps([config, context_length])
        if key not in known:
            known[key] = original(config, context_length)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.capture, "capture", capture)
        yield


@pytest.fixture(scope="session", autouse=True)
def torchlib_once() -> Iterator[None]:
    """torch.onnx reads the sources of some five hundred functions anew for each trace, a quarter of its time."""
    if not PATCHED:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    original = ONNXRegistry.from_torchlib

    @cache
    def made(opset_version: int) -> ONNXRegistry:
        return original(opset_version)

    def from_torchlib(opset_version: int) -> ONNXRegistry:
        """A copy, for each trace adds its own translations."""
        registry = copy.copy(made(opset_version))
        registry.functions = {name: list(found) for name, found in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))
        yield
