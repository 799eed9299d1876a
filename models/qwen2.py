"""Qwen2 and Qwen2.5: biases on q, k, v; a sliding window from some layer on when the configuration asks."""

from __future__ import annotations

from models.family import Family

QWEN2 = Family(
    name="Qwen2", model_types=("qwen2",), stop_tokens=("<|im_end|>", "<|endoftext|>"), tool_format="hermes"
)
