"""Processes in which chosen modules cannot be imported, their own child processes included."""

from __future__ import annotations

from pathlib import Path

FORBIDDEN = (
    "torch",
    "transformers",
    "triton",
    "onnx",
    "onnxscript",
    "onnx_ir",
    "gguf",
    "optimum",
    "export",
    "models",
)

SITE = """
import os, pathlib, sys

FORBIDDEN = {forbidden!r}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{{name}} must not be imported here")
        return None


sys.meta_path.insert(0, Refuse())
pathlib.Path({marks!r}, str(os.getpid())).touch()
"""


def blocking_environment(folder: Path) -> dict[str, str]:
    """Environment under which every Python process refuses FORBIDDEN and leaves a file named after its pid in
    `folder`/processes. The refusal comes through sitecustomize, which Python imports at start even with -P."""
    marks = folder / "processes"
    marks.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(forbidden=FORBIDDEN, marks=str(marks)))
    return {"PYTHONPATH": str(folder)}


def processes(folder: Path) -> set[int]:
    """The pids of the processes that refused."""
    return {int(mark.name) for mark in (folder / "processes").iterdir()}
