"""Gemma 2: soft-caps on scores and logits, every other layer with a sliding window, norms that keep 1 + w."""

from __future__ import annotations

from models.family import Family

GEMMA2 = Family(name="Gemma 2", model_types=("gemma2",), stop_tokens=("<end_of_turn>",))
