"""The inference core. `from rtcore import LLM, SamplingParams` is the offline API.

What is exported here loads when it is first asked for, so that a part such as `rtcore.request` imports quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtcore.config import EngineConfig
    from rtcore.decoding.grammar.spec import StructuredOutputs
    from rtcore.decoding.params import SamplingParams
    from rtcore.llm import LLM
    from rtcore.output import CompletionOutput, RequestOutput

__all__ = ["LLM", "CompletionOutput", "EngineConfig", "RequestOutput", "SamplingParams", "StructuredOutputs"]

_MODULE_OF = {
    "LLM": "rtcore.llm",
    "CompletionOutput": "rtcore.output",
    "EngineConfig": "rtcore.config",
    "RequestOutput": "rtcore.output",
    "SamplingParams": "rtcore.decoding.params",
    "StructuredOutputs": "rtcore.decoding.grammar.spec",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
