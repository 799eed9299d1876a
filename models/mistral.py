"""Mistral: Llama's architecture with a sliding window over every layer."""

from __future__ import annotations

from models.family import Family

MISTRAL = Family(name="Mistral", model_types=("mistral",), stop_tokens=("<|im_end|>",), tool_format="mistral")
