"""What GGUF calls the tensors of each architecture, and how its layout differs from Hugging Face's.

Names: llama.cpp's tensor naming (gguf-py, tensor_mapping). Layout: its conversion script, which reorders the rows
of q and k for interleaved RoPE, adds 1 to Gemma's norms, transposes GPT-2's weights and parts GPT-NeoX's q, k, v.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from export.sources import Affine, Regrouped, Row, Transposed
from export.tensors import RowSource

#: Gives the tensor in Hugging Face's layout, from the stored one, its stored name and the config.
Layout = Callable[[RowSource, str, dict[str, Any]], RowSource]


@dataclass(frozen=True)
class GGUFFamily:
    """One architecture. model_type: as config.json says it. layer: stored names inside the layers, without
    ``blk.N.``, and what Hugging Face calls them; model: those outside. prefix: how Hugging Face begins a layer's
    names. layout: None where both lay tensors out alike. norm: which epsilon the metadata must have. extra: fields
    of config.json that follow from the architecture alone."""

    model_type: str
    layer: dict[str, str]
    model: dict[str, str]
    prefix: str = "model.layers."
    layout: Layout | None = None
    norm: Literal["rms", "layer"] = "rms"
    extra: dict[str, Any] = field(default_factory=dict)

    def hugging_face_name(self, stored: str) -> str | None:
        """The Hugging Face name of a stored tensor, None where it has none."""
        base, _, suffix = stored.rpartition(".")
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
        if match:
            inner = self.layer.get(match[2])
            return None if inner is None else f"{self.prefix}{match[1]}.{inner}.{suffix}"
        outer = self.model.get(base)
        return None if outer is None else f"{outer}.{suffix}"


def _is(name: str, *parts: str) -> bool:
    return any(f".{part}." in name for part in parts)


def _unpermuted(source: RowSource, name: str, config: dict[str, Any]) -> RowSource:
    """Rows of q and k, stored as (0, d/2, 1, d/2 + 1, ...) in each head, back in their own order."""
    if not _is(name, "attn_q", "attn_k"):
        return source
    heads = config["num_attention_heads" if _is(name, "attn_q") else "num_key_value_heads"]
    return Regrouped(source, heads, source.shape[0] // heads // 2, 2)


def _unit_norms(source: RowSource, name: str, config: dict[str, Any]) -> RowSource:
    """Norms are stored as 1 + w."""
    return Affine(source, offset=-1.0) if name.endswith("norm.weight") else source


def _gpt2(source: RowSource, name: str, config: dict[str, Any]) -> RowSource:
    """Hugging Face keeps the weights of GPT-2's linears as [in, out]."""
    turned = _is(name, "attn_qkv", "attn_output", "ffn_up", "ffn_down") and name.endswith("weight")
    return Transposed(source) if turned else source


def _gpt_neox(source: RowSource, name: str, config: dict[str, Any]) -> RowSource:
    """Hugging Face keeps q, k and v together in each head."""
    if not _is(name, "attn_qkv"):
        return source
    heads = config["num_attention_heads"]
    return Regrouped(source, 1, 3, heads, source.shape[0] // heads // 3)


def _qwen2moe(source: RowSource, name: str, config: dict[str, Any]) -> RowSource:
    """The gate of the expert for all tokens is a matrix of one row, which llama.cpp's tools keep as a vector."""
    return Row(source) if name.endswith("ffn_gate_inp_shexp.weight") and len(source.shape) == 1 else source


_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_MIXTURE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LLAMA = {**_ATTENTION, **_GATED, **_PRE_NORMS}
_EXPERTS = {**_ATTENTION, **_MIXTURE, **_PRE_NORMS}
_GEMMA = {
    **_ATTENTION,
    **_GATED,
    **_POST_NORMS,
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
}
_PHI3 = {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_STARCODER2 = {**_ATTENTION, **_PRE_NORMS, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_GPT2 = {
    "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_MODEL = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_NEOX = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_NEOX_MODEL = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "lm_head",
}

#: By general.architecture.
FAMILIES: dict[str, GGUFFamily] = {
    "llama": GGUFFamily("llama", _LLAMA, _MODEL, layout=_unpermuted),
    "smollm3": GGUFFamily("smollm3", _LLAMA, _MODEL, layout=_unpermuted),
    "granite": GGUFFamily("granite", _LLAMA, _MODEL, layout=_unpermuted),
    "qwen2": GGUFFamily("qwen2", _LLAMA, _MODEL),
    "qwen3": GGUFFamily("qwen3", _LLAMA, _MODEL),
    "qwen2moe": GGUFFamily("qwen2_moe", {**_EXPERTS, **_SHARED}, _MODEL, layout=_qwen2moe),
    "qwen3moe": GGUFFamily("qwen3_moe", _EXPERTS, _MODEL, extra={"norm_topk_prob": True}),
    "olmoe": GGUFFamily("olmoe", _EXPERTS, _MODEL),
    "olmo2": GGUFFamily("olmo2", {**_ATTENTION, **_GATED, **_POST_NORMS}, _MODEL),
    "phi3": GGUFFamily("phi3", _PHI3, _MODEL),
    "gemma2": GGUFFamily(
        "gemma2", _GEMMA, _MODEL, layout=_unit_norms, extra={"hidden_activation": "gelu_pytorch_tanh"}
    ),
    "gemma3": GGUFFamily(
        "gemma3_text", _GEMMA, _MODEL, layout=_unit_norms, extra={"hidden_activation": "gelu_pytorch_tanh"}
    ),
    "starcoder2": GGUFFamily("starcoder2", _STARCODER2, _MODEL, norm="layer", extra={"sliding_window": None}),
    "gpt2": GGUFFamily("gpt2", _GPT2, _GPT2_MODEL, prefix="transformer.h.", layout=_gpt2, norm="layer"),
    "gptneox": GGUFFamily("gpt_neox", _NEOX, _NEOX_MODEL, "gpt_neox.layers.", layout=_gpt_neox, norm="layer"),
}

#: What an architecture above is with experts: GGUF has Mixtral as a Llama.
MIXTURES: dict[str, GGUFFamily] = {"llama": GGUFFamily("mixtral", _EXPERTS, _MODEL, layout=_unpermuted)}
