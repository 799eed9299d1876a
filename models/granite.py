"""Granite 3 (dense): multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from models.family import Family

GRANITE = Family(name="Granite", model_types=("granite",), stop_tokens=("<|end_of_text|>",), tool_format="granite")
