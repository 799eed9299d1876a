"""Processes in which chosen modules are not installed, their own child processes included."""

from __future__ import annotations

from pathlib import Path

BUILD_ONLY = ("torch", "transformers", "triton", "onnx", "onnxscript", "onnx_ir", "safetensors", "gguf", "optimum")
FORBIDDEN = (*BUILD_ONLY, "export", "models")

SITE = """
import os, pathlib, sys


class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
pathlib.Path({marks!r}, str(os.getpid())).touch()
"""


def environment_without(folder: Path, absent: tuple[str, ...] = FORBIDDEN) -> dict[str, str]:
    """Environment under which no Python process finds the modules `absent`, and each leaves a file named after
    its pid in `folder`/processes. It works through sitecustomize, which Python imports at start even with -P."""
    marks = folder / "processes"
    marks.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(SITE.format(absent=absent, marks=str(marks)))
    return {"PYTHONPATH": str(folder)}


def processes(folder: Path) -> set[int]:
    """The pids of the processes that started under the environment."""
    return {int(mark.name) for mark in (folder / "processes").iterdir()}
