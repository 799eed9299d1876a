"""The engines that can be compared; each is one driver in the folder beside this file."""

from __future__ import annotations

from pathlib import Path

from ops.errors import ConfigError
from server.nearest import nearest

DRIVERS = Path(__file__).parent / "drivers"
BASE = DRIVERS / "base.py"
OURS = "ortolan"
ENGINES = (
    OURS,
    "llama_cpp",
    "onnxruntime_genai",
    "openvino_genai",
    "ctranslate2",
    "vllm",
    "transformers",
)


def driver(engine: str) -> Path:
    """The script that drives an engine. Raises ConfigError for an unknown one."""
    if engine not in ENGINES:
        near = nearest(engine, ENGINES)
        raise ConfigError(
            f"There is no driver for the engine {engine!r}.",
            remedy=f"Did you mean {near!r}?" if near else f"Choose from {', '.join(ENGINES)}.",
            param="engine",
        )
    return DRIVERS / f"{engine}.py"
