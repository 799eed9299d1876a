"""Phi-3, 3.5 and 4 (text): packed q | k | v and gate | up, partial rotary embedding.

Checkpoints with longrope (the 128k ones) are refused by the common check of rotary scaling.
"""

from __future__ import annotations

from models.family import Family

PHI3 = Family(name="Phi-3", model_types=("phi3",), stop_tokens=("<|end|>", "<|endoftext|>", "<|im_end|>"))
