"""SmolLM3: every fourth layer without rotary embedding."""

from __future__ import annotations

from models.family import Family

SMOLLM3 = Family(
    name="SmolLM3",
    model_types=("smollm3",),
    stop_tokens=("<|im_end|>",),
    tool_format="hermes",
    reasoning_format="think",
)
