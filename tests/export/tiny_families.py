"""A tiny random model of every family, with the family's particulars switched on and weights that show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from export.checkpoint.base import Checkpoint
from export.tensors import RowSource, matrix_shape
from ops.errors import CheckpointError
from tests.export.sources import ArraySource

CONTEXT = 128
WINDOW = 8
VOCABULARY = 96

_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LOCAL_GLOBAL = ["sliding_attention", "full_attention"]


def _config(model_type: str, without: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    config = _BASE | {"model_type": model_type} | changes
    return {key: value for key, value in config.items() if key not in without}


#: config.json by a name for the test; the name starts with the family's.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _config("llama", head_dim=16, tie_word_embeddings=True),
    "llama_biases_wide_heads_llama3_rope": _config(
        "llama",
        num_hidden_layers=1,
        head_dim=32,
        attention_bias=True,
        mlp_bias=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama_odd_width": _config(
        "llama", num_hidden_layers=1, hidden_size=72, intermediate_size=100, head_dim=18, attention_bias=True
    ),
    "mistral": _config("mistral", num_hidden_layers=1, sliding_window=WINDOW),
    "qwen2": _config("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3_yarn_rope": _config(
        "qwen3",
        num_hidden_layers=1,
        head_dim=32,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "phi3": _config("phi3", num_hidden_layers=1, sliding_window=WINDOW, partial_rotary_factor=0.5),
    "gemma2": _config(
        "gemma2", head_dim=32, sliding_window=WINDOW, query_pre_attn_scalar=20, attn_logit_softcapping=3.0
    ),
    "gemma3": _config(
        "gemma3_text",
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=20,
        layer_types=_LOCAL_GLOBAL,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "smollm3": _config("smollm3", no_rope_layers=[1, 0]),
    "olmo2": _config("olmo2", num_hidden_layers=1),
    "starcoder2": _config("starcoder2", num_hidden_layers=1, sliding_window=WINDOW, use_bias=True),
    "granite": _config(
        "granite",
        num_hidden_layers=1,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logits_scaling=2.0,
    ),
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "gpt_neox": _config("gpt_neox", without=("num_key_value_heads",), num_hidden_layers=1, rotary_pct=0.25),
    "gpt_neox_sequential": _config(
        "gpt_neox",
        without=("num_key_value_heads",),
        num_hidden_layers=1,
        rotary_pct=0.5,
        use_parallel_residual=False,
    ),
    "mixtral": _config("mixtral", num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": _config(
        "qwen2_moe",
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=96,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
    "qwen3_moe": _config(
        "qwen3_moe",
        num_hidden_layers=1,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        norm_topk_prob=True,
    ),
    "olmoe": _config("olmoe", num_hidden_layers=1, num_experts=8, num_experts_per_tok=3, hidden_act="gelu"),
}

CONFIGS["qwen3_moe_whole_blocks"] = CONFIGS["qwen3_moe"] | {"moe_intermediate_size": 64}

#: Further forms of families that the other entries cover.
VARIANTS = ("llama_biases_wide_heads_llama3_rope", "gpt_neox_sequential", "qwen3_moe_whole_blocks")


def random_model(config: dict[str, Any], seed: int = 3) -> PreTrainedModel:
    """The model in eager mode; matrices keep the size of what they multiply, norms and biases are not neutral,
    so that every weight and every option shows in the logits."""
    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=generator)
            if value.dim() == 1:
                value.add_(0.2 * noise)
            else:
                value.copy_(noise / value.shape[-1] ** 0.5)
    return model


class ModelCheckpoint(Checkpoint):
    """A torch model in memory as a checkpoint."""

    kind = "huggingface"

    def __init__(self, model: PreTrainedModel) -> None:
        self.name = "memory"
        self.config = model.config.to_dict()
        arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
        self.state = {name: array.reshape(matrix_shape(array.shape)) for name, array in arrays.items()}

    def names(self) -> Iterable[str]:
        return self.state

    def tensor(self, name: str) -> RowSource:
        if name not in self.state:
            raise CheckpointError(f"There is no tensor {name}.")
        return ArraySource(self.state[name], name)

    def write_tokenizer(self, folder: Path) -> None:
        raise CheckpointError(f"No tokenizer to write into {folder}.")

    def sha256(self) -> str:
        return ""

    def close(self) -> None:
        self.state = {}
