"""Which configurations are served and which are refused, and that a refusal says what is missing."""

from __future__ import annotations

import pytest

from models.family import rope_kinds
from models.refused import REFUSED
from models.registry import FAMILIES, family_of
from ops.errors import CheckpointError, UnsupportedModel

TYPES = [model_type for family in FAMILIES for model_type in family.model_types]


@pytest.mark.parametrize("model_type", TYPES)
def test_a_plain_configuration_is_served(model_type: str) -> None:
    assert model_type in family_of({"model_type": model_type}).model_types


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"model_type": "phimoe"}, "mixture-of-experts"),
        ({"model_type": "qwen3_next"}, "recurrent state"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"model_type": "t5"}, "an encoder"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "an encoder"),
        ({"model_type": "gemma3"}, "images"),
        ({"model_type": "llama", "vision_config": {"depth": 2}}, "images"),
        ({"model_type": "deepseek_v3"}, "mixture-of-experts"),
        ({"model_type": "minicpm3"}, "latent attention"),
        ({"model_type": "falcon"}, "attention of its own"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"model_type": "phi3", "rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"model_type": "qwen2", "rope_scaling": {"rope_type": "no such kind"}}, "no such kind"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "cross attention"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "both directions"),
        ({"model_type": "something_new"}, "something_new"),
    ],
)
def test_a_refusal_names_what_is_missing(config: dict[str, object], missing: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        family_of(config)
    assert missing in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("config", [{}, {"model_type": 3}, {"model_type": ""}])
def test_a_configuration_without_a_model_type_is_no_checkpoint(config: dict[str, object]) -> None:
    with pytest.raises(CheckpointError) as caught:
        family_of(config)
    assert not isinstance(caught.value, UnsupportedModel)
    assert caught.value.param == "model_type"


def test_no_type_is_served_and_refused() -> None:
    assert not set(TYPES) & REFUSED.keys()
    assert len(TYPES) == len(set(TYPES))


def test_rotary_kinds_are_found_in_old_new_and_nested_spelling() -> None:
    assert rope_kinds({"rope_scaling": {"type": "yarn"}}) == {"yarn"}
    assert rope_kinds({"rope_parameters": {"rope_type": "llama3"}}) == {"llama3"}
    nested = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "linear"}}
    assert rope_kinds({"rope_parameters": nested}) == {"default", "linear"}
    assert rope_kinds({"rope_scaling": None}) == set()


@pytest.mark.export
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "hidden_size": "wide"},
        {"model_type": "llama", "num_attention_heads": 0},
        {"model_type": "qwen2", "rope_scaling": "yarn"},
        {"model_type": "llama", "max_position_embeddings": 2**40},
        {"model_type": "qwen3", "num_hidden_layers": 2**40},
        {"model_type": "gpt2", "n_layer": 2**40},
        {"model_type": "olmoe", "num_experts": 2, "num_experts_per_tok": 3},
        {"model_type": "mixtral", "num_local_experts": 2**40},
        {"model_type": "qwen3_moe", "num_experts": "many"},
    ],
)
def test_an_unsound_configuration_is_a_checkpoint_error(config: dict[str, object]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CheckpointError) as caught:
        family = family_of(config)
        family.context_length(family.parse(config))
    assert "config.json" in str(caught.value)


@pytest.mark.export
def test_the_context_length_is_that_of_the_configuration() -> None:
    pytest.importorskip("transformers")
    for config, length in (
        ({"model_type": "llama", "max_position_embeddings": 77}, 77),
        ({"model_type": "gpt2", "n_positions": 33}, 33),
        ({"model_type": "llama", "max_position_embeddings": 8, "num_labels": 2**40}, 8),
    ):
        family = family_of(config)
        assert family.context_length(family.parse(config)) == length
