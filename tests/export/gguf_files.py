"""Makes small GGUF files for tests with the gguf package's own writer and quantiser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

#: Types that the package can also quantise to.
QUANTISABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[NDArray[np.float32] | NDArray[np.uint8], str]],
) -> Path:
    """metadata: keys without the architecture's prefix, or with a dot-path of their own (tokenizer.*, general.*);
    tensors: float arrays and the type in which they are stored, or bytes that are of that type already."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        full = key if key.startswith(("tokenizer.", "general.", "split.")) else f"{architecture}.{key}"
        _add(writer, full, value)
    for name, (array, kind) in tensors.items():
        form = gguf.GGMLQuantizationType[kind]
        stored = array if array.dtype == np.uint8 else gguf.quantize(array, form)
        writer.add_tensor(name, stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, LAYERS, VOCAB = 64, 96, 4, 2, 16, 2, 300


def sizes(**changes: Any) -> dict[str, Any]:
    """Metadata that most architectures share."""
    return {
        "general.name": "tiny",
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCAB,
        **byte_tokenizer(),
        **changes,
    }


def byte_tokenizer(pre: str = "smollm") -> dict[str, Any]:
    """A byte-level tokenizer: 256 bytes, some merges, three special tokens; VOCAB tokens in all."""
    alphabet = _byte_alphabet()
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ 1", "1 2", "o r", "Ġw or", "l d"]
    tokens = ["<|end|>", "<|start|>", "<|stop|>", *alphabet, *(merge.replace(" ", "") for merge in merges)]
    unused = [f"[unused{number}]" for number in range(VOCAB - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (VOCAB - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<|start|>{{ m.content }}<|stop|>{% endfor %}",
    }


def _byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


_ATTENTION = {
    "attn_q.weight": (HEADS * WIDTH, HIDDEN),
    "attn_k.weight": (KV_HEADS * WIDTH, HIDDEN),
    "attn_v.weight": (KV_HEADS * WIDTH, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * WIDTH),
}
_BIASES = {
    "attn_q.bias": (HEADS * WIDTH,),
    "attn_k.bias": (KV_HEADS * WIDTH,),
    "attn_v.bias": (KV_HEADS * WIDTH,),
}
_GATED = {"ffn_gate.weight": (INNER, HIDDEN), "ffn_up.weight": (INNER, HIDDEN), "ffn_down.weight": (HIDDEN, INNER)}
_NORMS = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
_HEAD_NORMS = {"attn_q_norm.weight": (WIDTH,), "attn_k_norm.weight": (WIDTH,)}
_POST_NORMS = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
_PLAIN = {
    "attn_norm.bias": (HIDDEN,), "ffn_norm.bias": (HIDDEN,), "attn_output.bias": (HIDDEN,),
    "ffn_up.weight": (INNER, HIDDEN), "ffn_up.bias": (INNER,),
    "ffn_down.weight": (HIDDEN, INNER), "ffn_down.bias": (HIDDEN,),
}  # fmt: skip
_FUSED = {
    "attn_qkv.weight": (3 * HIDDEN, HIDDEN),
    "attn_qkv.bias": (3 * HIDDEN,),
    "attn_output.weight": (HIDDEN, HIDDEN),
}
EXPERTS = 4
_MIXTURE = {
    "ffn_gate_inp.weight": (EXPERTS, HIDDEN), "ffn_gate_exps.weight": (EXPERTS, 32, HIDDEN),
    "ffn_up_exps.weight": (EXPERTS, 32, HIDDEN), "ffn_down_exps.weight": (EXPERTS, HIDDEN, 32),
}  # fmt: skip
_SHARED = {
    "ffn_gate_inp_shexp.weight": (HIDDEN,), "ffn_gate_shexp.weight": (96, HIDDEN),
    "ffn_up_shexp.weight": (96, HIDDEN), "ffn_down_shexp.weight": (HIDDEN, 96),
}  # fmt: skip
_PHI = {
    "attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN), "attn_output.weight": (HIDDEN, HEADS * WIDTH),
    "ffn_up.weight": (2 * INNER, HIDDEN), "ffn_down.weight": (HIDDEN, INNER),
}  # fmt: skip

#: Tensors of a layer by architecture.
LAYER_TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": {**_ATTENTION, **_GATED, **_NORMS},
    "smollm3": {**_ATTENTION, **_GATED, **_NORMS},
    "granite": {**_ATTENTION, **_GATED, **_NORMS},
    "qwen2": {**_ATTENTION, **_BIASES, **_GATED, **_NORMS},
    "qwen3": {**_ATTENTION, **_HEAD_NORMS, **_GATED, **_NORMS},
    "qwen2moe": {**_ATTENTION, **_BIASES, **_MIXTURE, **_SHARED, **_NORMS},
    "qwen3moe": {**_ATTENTION, **_HEAD_NORMS, **_MIXTURE, **_NORMS},
    "olmoe": {
        **_ATTENTION, **_MIXTURE, **_NORMS,
        "attn_q_norm.weight": (HEADS * WIDTH,), "attn_k_norm.weight": (KV_HEADS * WIDTH,),
    },
    "mixtral": {**_ATTENTION, **_MIXTURE, **_NORMS},
    "olmo2": {
        **_ATTENTION, **_GATED, **_POST_NORMS,
        "attn_q_norm.weight": (HEADS * WIDTH,), "attn_k_norm.weight": (KV_HEADS * WIDTH,),
    },
    "phi3": {**_PHI, **_NORMS},
    "gemma2": {**_ATTENTION, **_GATED, **_NORMS, **_POST_NORMS},
    "gemma3": {**_ATTENTION, **_HEAD_NORMS, **_GATED, **_NORMS, **_POST_NORMS},
    "starcoder2": {**_ATTENTION, **_BIASES, **_PLAIN, **_NORMS},
    "gpt2": {
        **_FUSED, **_PLAIN, **_NORMS,
        "ffn_up.weight": (4 * HIDDEN, HIDDEN), "ffn_up.bias": (4 * HIDDEN,),
        "ffn_down.weight": (HIDDEN, 4 * HIDDEN),
    },
    "gptneox": {**_FUSED, **_PLAIN, **_NORMS},
}  # fmt: skip
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
_EXPERT_COUNTS = {"expert_count": EXPERTS, "expert_used_count": 2}
METADATA: dict[str, dict[str, Any]] = {
    "llama": {"rope.dimension_count": WIDTH},
    "qwen3": {"attention.key_length": WIDTH},
    "qwen2moe": _EXPERT_COUNTS,
    "qwen3moe": {**_EXPERT_COUNTS, "attention.key_length": WIDTH},
    "olmoe": _EXPERT_COUNTS,
    "mixtral": {**_EXPERT_COUNTS, "rope.dimension_count": WIDTH},
    "gemma2": {"attention.key_length": WIDTH, "attention.sliding_window": 32},
    "gemma3": {"attention.key_length": WIDTH, "attention.sliding_window": 32},
    "phi3": {"rope.dimension_count": WIDTH, "tokenizer.ggml.padding_token_id": 0},
    "starcoder2": _LAYER_NORM,
    "gpt2": {
        **_LAYER_NORM,
        "attention.head_count_kv": HEADS,
        "feed_forward_length": 4 * HIDDEN,
        "context_length": 1024,
    },
    "gptneox": {**_LAYER_NORM, "attention.head_count_kv": HEADS, "rope.dimension_count": WIDTH // 4},
    "granite": {"attention.scale": 0.1, "embedding_scale": 12.0, "residual_scale": 0.2, "logit_scale": 8.0},
}


def write_family(
    path: Path, architecture: str, kind: str = "F32", kinds: dict[str, str] | None = None, **changes: Any
) -> Path:
    """A model of random weights (mixtral is a llama with experts); matrices are stored as `kind`, or as `kinds`
    says of names that hold its keys."""

    def kind_of(name: str) -> str:
        return next((other for part, other in (kinds or {}).items() if part in name), kind)

    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if architecture in ("starcoder2", "gpt2", "gptneox"):
        shapes["output_norm.bias"] = (HIDDEN,)
    if architecture == "gpt2":
        shapes["position_embd.weight"] = (1024, HIDDEN)
    if architecture in ("gptneox", "qwen2"):
        shapes["output.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in LAYER_TENSORS[architecture].items()}
    generator = np.random.default_rng(3)
    tensors = {
        name: (generator.standard_normal(shape, dtype=np.float32), kind_of(name) if len(shape) > 1 else "F32")
        for name, shape in shapes.items()
    }
    stored_as = "llama" if architecture == "mixtral" else architecture
    return write_gguf(path, stored_as, sizes(**METADATA.get(architecture, {}), **changes), tensors)
