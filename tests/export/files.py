"""Makes small checkpoints for tests: safetensors files written by hand, folders of a synthetic Llama."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64", "uint8": "U8"}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors as they are; uint16 arrays are taken for bfloat16."""
    header: dict[str, Any] = {}
    position = 0
    for name, array in tensors.items():
        end = position + array.nbytes
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 cut to bfloat16's 16 bits."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def llama_config(**changes: Any) -> dict[str, Any]:
    """config.json of a small Llama; keyword arguments replace fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 160,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The parameters of a Llama by name."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        inside: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def write_llama(folder: Path, config: Mapping[str, Any], shards: int = 1, dtype: str = "float32") -> Path:
    """A folder with config.json and random weights; several shards come with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = np.random.default_rng(5)
    shapes = llama_shapes(config)
    names = list(shapes)
    where: dict[str, str] = {}
    for number in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: _random(generator, shapes[name], dtype) for name in names[number::shards]}
        write_safetensors(folder / file, part)
        where |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
    return bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)
