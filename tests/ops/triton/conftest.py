"""Kernel cases run on a GPU, or on the CPU where Triton interprets them (TRITON_INTERPRET=1 before its import)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

# Where nothing is exported, neither of them is installed.
collect_ignore_glob = [] if find_spec("triton") and find_spec("torch") else ["test_*.py"]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _let_loops_end_at_a_kernels_number() -> None:
    """Triton 3.6 makes an int of an array with one element, which numpy no longer does (since 2.4)."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED:
    _let_loops_end_at_a_kernels_number()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "ops/triton" in item.path.as_posix() and not INTERPRETED:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> str:
    """The torch device that kernels run on."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU, and Triton does not interpret")
    return "cuda"


@pytest.fixture(params=["float16"] if INTERPRETED else ["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    """The type of activations; the interpreter computes in numpy, which has no bfloat16."""
    return str(request.param)
