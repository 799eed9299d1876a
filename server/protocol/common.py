"""Shapes that several endpoints answer with."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of all prompts, each counted once, and of all answers up to where their text ends."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ModelCard(msgspec.Struct, frozen=True, tag_field="object", tag="model"):
    """A served model; `max_model_len` is vLLM's name for the context length in tokens."""

    id: str
    created: int
    max_model_len: int
    root: str
    owned_by: str = "ortolan"


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: list[ModelCard]


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's shape of an error."""

    error: ErrorDetail


class EngineHealth(msgspec.Struct, frozen=True):
    """`/health` and `/ready`: the state of the engine, why it last ended, and how often it came up again."""

    status: str
    engine: str
    restarts: int
    in_flight: int
    reason: str | None = None
