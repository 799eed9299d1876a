"""StarCoder2: layer norms, biases, a plain GELU feed-forward, a sliding window in some sizes."""

from __future__ import annotations

from models.family import Family

STARCODER2 = Family(name="StarCoder2", model_types=("starcoder2",), stop_tokens=("<|endoftext|>",))
