"""Llama: Llama 2 and 3, SmolLM2, and the many checkpoints of their architecture."""

from __future__ import annotations

from models.family import Family

LLAMA = Family(
    name="Llama",
    model_types=("llama",),
    stop_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>"),
    tool_format="llama3",
)
