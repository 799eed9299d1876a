"""GPT-NeoX and Pythia: q, k, v interleaved by head, partial rotary embedding, parallel residual."""

from __future__ import annotations

from models.family import Family

GPT_NEOX = Family(name="GPT-NeoX", model_types=("gpt_neox",), stop_tokens=("<|endoftext|>",))
