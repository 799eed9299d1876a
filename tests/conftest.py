"""Shared fixtures: the real model, a tiny random one, and bundles of both."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import assets

EXPORT_MODULES = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "gguf", "safetensors")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bundle", type=Path, help="a SmolLM2 bundle to test with, instead of exporting one")
    parser.addoption("--tiny-bundle", type=Path, help="a bundle of the tiny Llama, instead of exporting one")


def _need_export() -> None:
    missing = [name for name in EXPORT_MODULES if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the export extra; not installed: {', '.join(missing)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("export"):
        _need_export()


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as a .gguf file (Q4_1)."""
    return assets.smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_bundle(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct as a bundle, precisions fp32 and int8."""
    given: Path | None = request.config.getoption("--bundle")
    if given is not None:
        return given.resolve()
    _need_export()
    return assets.smollm2_bundle()


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """A Hugging Face folder of a tiny random Llama (512 tokens of context) with a chat template."""
    _need_export()
    return assets.tiny_llama()


@pytest.fixture(scope="session")
def tiny_bundle(request: pytest.FixtureRequest) -> Path:
    """The tiny random Llama as a bundle, precisions fp32, int8 and int4."""
    given: Path | None = request.config.getoption("--tiny-bundle")
    if given is not None:
        return given.resolve()
    _need_export()
    return assets.tiny_bundle()
