"""OLMo 2: norms after attention and feed-forward, and an RMS norm over all of q and all of k."""

from __future__ import annotations

from models.family import Family

OLMO2 = Family(name="OLMo 2", model_types=("olmo2",), stop_tokens=("<|endoftext|>",))
