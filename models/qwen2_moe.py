"""Qwen1.5 and Qwen2 with mixtures of experts: one more expert for every token, with a gate of its own."""

from __future__ import annotations

from models.mixture import MixtureFamily

QWEN2_MOE = MixtureFamily(
    name="Qwen2-MoE",
    model_types=("qwen2_moe",),
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    tool_format="hermes",
)
