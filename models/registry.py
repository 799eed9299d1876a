"""The families that Ortolan serves, and the refusal of all others by name and reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.family import Family
from models.gemma2 import GEMMA2
from models.gemma3 import GEMMA3
from models.gpt2 import GPT2
from models.gpt_neox import GPT_NEOX
from models.granite import GRANITE
from models.llama import LLAMA
from models.mistral import MISTRAL
from models.mixtral import MIXTRAL
from models.olmo2 import OLMO2
from models.olmoe import OLMOE
from models.phi3 import PHI3
from models.qwen2 import QWEN2
from models.qwen2_moe import QWEN2_MOE
from models.qwen3 import QWEN3
from models.qwen3_moe import QWEN3_MOE
from models.refused import REFUSED
from models.smollm3 import SMOLLM3
from models.starcoder2 import STARCODER2
from ops.errors import CheckpointError, UnsupportedModel

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    PHI3,
    GEMMA2,
    GEMMA3,
    SMOLLM3,
    OLMO2,
    STARCODER2,
    GRANITE,
    GPT2,
    GPT_NEOX,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    OLMOE,
)
_BY_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}
_OTHER_SENSES = ("vision_config", "audio_config", "video_config", "vision_tower", "mm_vision_tower")


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of config.json's content, checked.

    Raises CheckpointError when it names no model type, UnsupportedModel naming what is missing otherwise.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            "config.json does not say what model this is.",
            why="model_type is missing.",
            remedy="Use a folder that holds a transformers model.",
            param="model_type",
        )
    reason = _reason(model_type, config)
    if reason:
        raise UnsupportedModel(
            f"Models of type {model_type!r} are not supported: they need {reason}.", remedy=_choose()
        )
    family = _BY_TYPE.get(model_type)
    if family is None:
        raise UnsupportedModel(f"The model type {model_type!r} is not one that Ortolan knows.", remedy=_choose())
    family.check(config)
    return family


def _reason(model_type: str, config: Mapping[str, Any]) -> str:
    """What a configuration needs that no family of ours has; empty if nothing is known."""
    if any(config.get(field) for field in _OTHER_SENSES):
        return "images, audio or video"
    if config.get("is_encoder_decoder"):
        return "an encoder"
    return REFUSED.get(model_type, "")


def _choose() -> str:
    return f"Choose a model of one of these families: {', '.join(family.name for family in FAMILIES)}."
