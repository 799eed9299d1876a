"""Qwen3 (dense): an RMS norm on each query and key head."""

from __future__ import annotations

from models.family import Family

QWEN3 = Family(
    name="Qwen3",
    model_types=("qwen3",),
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    tool_format="hermes",
    reasoning_format="think",
)
