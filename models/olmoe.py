"""OLMoE: a mixture of experts in every layer, and an RMS norm over all of q and all of k."""

from __future__ import annotations

from models.mixture import MixtureFamily

OLMOE = MixtureFamily(name="OLMoE", model_types=("olmoe",), stop_tokens=("<|endoftext|>",))
