"""Mixtral: Mistral's architecture with a mixture of experts in every layer."""

from __future__ import annotations

from models.mixture import MixtureFamily

MIXTRAL = MixtureFamily(
    name="Mixtral",
    model_types=("mixtral",),
    stop_tokens=("<|im_end|>",),
    tool_format="mistral",
    experts_field="num_local_experts",
)
