"""Shared fixtures: the real model, a tiny random one, and bundles of both; and how tests are shared out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import assets

#: Files over the same captured models, which take seconds each: one process runs them all.
CAPTURED = ("test_families.py", "test_mixture.py", "test_quantised_graph.py", "kernels/test_plan.py")
EXPORT_MODULES = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "gguf", "safetensors")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bundle", type=Path, help="a SmolLM2 bundle to test with, instead of exporting one")
    parser.addoption("--tiny-bundle", type=Path, help="a bundle of the tiny Llama, instead of exporting one")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and keep what is there then, modules above all, out of its rounds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``: a file stays in one process, and so do files that share what they make."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "captured" if scope.removeprefix("tests/export/") in CAPTURED else scope

    # In the order of collection: longest files first, where the default is those of most tests.
    config.option.loadscopereorder = False
    return FilesTogether(config, log)


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
