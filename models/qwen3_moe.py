"""Qwen3 with mixtures of experts: Qwen3's attention, and many small experts."""

from __future__ import annotations

from models.mixture import MixtureFamily

QWEN3_MOE = MixtureFamily(
    name="Qwen3-MoE",
    model_types=("qwen3_moe",),
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    tool_format="hermes",
    reasoning_format="think",
)
