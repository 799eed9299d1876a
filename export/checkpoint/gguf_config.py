"""The config.json that a GGUF file's metadata stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.gguf_families import FAMILIES, MIXTURES, GGUFFamily
from ops.errors import CheckpointError, UnsupportedModel

#: rope_freqs.weight of Llama 3 holds the result of this scaling, whose inputs GGUF does not keep.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192


class Metadata:
    """Metadata of one architecture by short key, with typed errors for what is missing."""

    def __init__(self, values: dict[str, Any], file: str) -> None:
        self.values = values
        self.file = file
        self.architecture = values.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """``<architecture>.<key>``; an array of equal numbers counts as one number."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            return value[0]
        if isinstance(value, list):
            raise UnsupportedModel(
                f"{self.file} has layers that differ in {key}.",
                why="One number for all layers is needed.",
                remedy="Choose a model whose layers are alike.",
            )
        return value

    def number(self, key: str, default: float | None = None) -> Any:
        """A number that must be positive, and be there unless it has a default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise CheckpointError(
                f"The metadata of {self.file} has no usable {self.architecture}.{key}.",
                why=f"It holds {value!r}.",
                remedy="Convert the model again with a current converter.",
            )
        return value


def family_of(metadata: dict[str, Any], file: str) -> GGUFFamily:
    """The family of a file. Raises UnsupportedModel, naming the architecture, when there is none."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise UnsupportedModel(
            f"{file} has the architecture {architecture!r}, which is not read from GGUF.",
            why=f"Read are {', '.join(sorted(FAMILIES))}.",
            remedy="Export the model's Hugging Face checkpoint if its family is supported there.",
        )
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedModel(
            f"{file} is one of {metadata['split.count']} parts.",
            why="A model split over several GGUF files is not read.",
            remedy="Merge the parts with llama-gguf-split --merge.",
        )
    with_experts = metadata.get(f"{architecture}.expert_count", 0)
    return MIXTURES.get(architecture, FAMILIES[architecture]) if with_experts else FAMILIES[architecture]


def config_of(
    metadata: dict[str, Any],
    file: str,
    shapes: dict[str, tuple[int, ...]],
    rope_factors: NDArray[np.float32] | None,
) -> dict[str, Any]:
    """config.json as Hugging Face writes it. shapes: stored tensors by stored name; rope_factors: the content of
    rope_freqs.weight."""
    family = family_of(metadata, file)
    meta = Metadata(metadata, file)
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{file} has no tensor token_embd.weight.", remedy="Fetch the file again.")
    config = {"model_type": family.model_type, **_sizes(meta, family), **_rope(meta, shapes, rope_factors)}
    config |= {"vocab_size": shapes["token_embd.weight"][0], "tie_word_embeddings": "output.weight" not in shapes}
    config |= {"torch_dtype": "float32", **family.extra, **_particulars(meta, shapes)}
    for name in ("bos", "eos", "pad"):
        key = "padding" if name == "pad" else name
        config[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{key}_token_id")
    return config


def _sizes(meta: Metadata, family: GGUFFamily) -> dict[str, Any]:
    heads = meta.number("attention.head_count")
    hidden = meta.number("embedding_length")
    given = meta.get("attention.head_count_kv")
    kv_heads = meta.number("attention.head_count_kv") if given else heads  # absent and 0 both mean as many
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": meta.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": meta.number("feed_forward_length"),
        "max_position_embeddings": meta.number("context_length"),
        "head_dim": meta.get("attention.key_length") or hidden // heads,
    }
    if family.norm == "rms":
        return sizes | {"rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon")}
    return sizes | {"layer_norm_eps": meta.number("attention.layer_norm_epsilon")}


def _rope(
    meta: Metadata, shapes: dict[str, tuple[int, ...]], factors: NDArray[np.float32] | None
) -> dict[str, Any]:
    """rope_theta and rope_scaling. Raises UnsupportedModel for a scaling that cannot be told from the file."""
    if {"rope_factors_long.weight", "rope_factors_short.weight"} & shapes.keys():
        raise UnsupportedModel(
            f"{meta.file} uses long RoPE.",
            why="It chooses its frequencies by the longest prompt of a batch, which packed steps cannot follow.",
            remedy="Use the model's variant with the short context.",
        )
    rope: dict[str, Any] = {"rope_theta": float(meta.number("rope.freq_base", 10000.0))}
    scaling = meta.get("rope.scaling.type", "none")
    if factors is not None:
        rope["rope_scaling"] = _llama3_scaling(meta, rope["rope_theta"], factors)
    elif scaling == "linear":
        rope["rope_scaling"] = {"rope_type": "linear", "factor": meta.number("rope.scaling.factor")}
    elif scaling == "yarn":
        original = meta.number("rope.scaling.original_context_length")
        rope["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": meta.number("rope.scaling.factor"),
            "original_max_position_embeddings": original,
        }
    elif scaling != "none":
        raise UnsupportedModel(f"{meta.file} uses the RoPE scaling {scaling!r}, which is not read from GGUF.")
    return rope


def _llama3_scaling(meta: Metadata, theta: float, factors: NDArray[np.float32]) -> dict[str, Any]:
    """The llama3 scaling that yields these factors, checked against its formula."""
    dims = 2 * factors.size
    factor = float(factors.max())
    wavelength = 2 * np.pi * theta ** (np.arange(0, dims, 2) / dims)
    smooth = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    expected = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(wavelength < LLAMA3_CONTEXT / LLAMA3_HIGH, 1.0, expected)
    expected = np.where(wavelength > LLAMA3_CONTEXT / LLAMA3_LOW, factor, expected)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedModel(
            f"{meta.file} has RoPE factors of an unknown rule.",
            why="Only Llama 3's rule with an original context of 8192 tokens is recognised.",
            remedy="Export the model's Hugging Face checkpoint.",
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }


def _particulars(meta: Metadata, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What only one family's config has."""
    match meta.architecture:
        case "llama" if meta.get("expert_count"):
            return _experts(meta, shapes)
        case "qwen2moe" | "qwen3moe" | "olmoe":
            return _experts(meta, shapes) | {"attention_bias": "blk.0.attn_q.bias" in shapes}
        case "llama":
            return {"attention_bias": "blk.0.attn_q.bias" in shapes, "mlp_bias": "blk.0.ffn_up.bias" in shapes}
        case "qwen2" | "qwen3" | "olmo2":
            return {"use_sliding_window": False, "attention_bias": "blk.0.attn_q.bias" in shapes}
        case "gemma2":
            return _gemma(meta, pattern=None) | {
                "attn_logit_softcapping": meta.get("attn_logit_softcapping", 50.0),
                "final_logit_softcapping": meta.get("final_logit_softcapping", 30.0),
            }
        case "gemma3":
            return _gemma(meta, pattern=6) | {
                "rope_local_base_freq": meta.number("rope.freq_base_swa", 10000.0),
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
            }
        case "phi3":
            return {"sliding_window": meta.get("attention.sliding_window") or None}
        case "starcoder2":
            return {"norm_epsilon": meta.number("attention.layer_norm_epsilon")}
        case "granite":
            return _granite(meta)
        case "gpt2":
            return _gpt2(meta)
        case "gptneox":
            return _gpt_neox(meta)
    return {}


def _experts(meta: Metadata, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """A mixture's sizes; those of an expert are read off its weights. Raises CheckpointError without these."""
    count = meta.number("expert_count")
    down, shared = shapes.get("blk.0.ffn_down_exps.weight"), shapes.get("blk.0.ffn_gate_shexp.weight")
    if down is None:
        raise CheckpointError(
            f"{meta.file} has no tensor blk.0.ffn_down_exps.weight.",
            why="It says that it has experts, whose weights are to lie together in each layer.",
            remedy="Convert the model again with a current converter.",
        )
    sizes = {"num_experts": count, "num_local_experts": count, "moe_intermediate_size": down[1]}
    sizes |= {"num_experts_per_tok": meta.number("expert_used_count")}
    if meta.architecture in ("llama", "olmoe"):
        sizes |= {"intermediate_size": down[1]}
    return sizes if shared is None else sizes | {"shared_expert_intermediate_size": shared[0]}


def _gemma(meta: Metadata, pattern: int | None) -> dict[str, Any]:
    hidden, heads = meta.number("embedding_length"), meta.number("attention.head_count")
    head_dim = meta.get("attention.key_length") or hidden // heads
    # The 27B models alone scale by hidden / heads; GGUF keeps no trace of it but the number of layers.
    largest = meta.number("block_count") == (46 if pattern is None else 62)
    values = {
        "sliding_window": meta.number("attention.sliding_window"),
        "query_pre_attn_scalar": hidden // heads if largest else head_dim,
    }
    return values if pattern is None else values | {"sliding_window_pattern": pattern}


def _granite(meta: Metadata) -> dict[str, Any]:
    return {
        "attention_multiplier": meta.get("attention.scale", 1.0),
        "embedding_multiplier": meta.get("embedding_scale", 1.0),
        "residual_multiplier": meta.get("residual_scale", 1.0),
        "logits_scaling": meta.get("logit_scale", 1.0),
    }


def _gpt2(meta: Metadata) -> dict[str, Any]:
    return {
        "n_embd": meta.number("embedding_length"),
        "n_layer": meta.number("block_count"),
        "n_head": meta.number("attention.head_count"),
        "n_positions": meta.number("context_length"),
        "n_inner": meta.number("feed_forward_length"),
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon"),
    }


def _gpt_neox(meta: Metadata) -> dict[str, Any]:
    head_dim = meta.number("embedding_length") // meta.number("attention.head_count")
    return {
        "rotary_pct": meta.number("rope.dimension_count", head_dim) / head_dim,
        "use_parallel_residual": meta.get("use_parallel_residual", True),
    }
