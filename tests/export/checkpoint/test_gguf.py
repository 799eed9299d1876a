"""GGUF as a checkpoint: names and layouts against transformers' own loader, config, tokenizer, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

from export.checkpoint.gguf import GGUFCheckpoint
from export.parameters import checked_reader
from export.quantise import QuantisedWeight
from export.tensors import matrix_shape
from ops.errors import CheckpointError, UnsupportedModel
from ops.layout import QuantForm
from tests.export import gguf_files as files

#: Architectures that transformers reads from GGUF too (its reader of Qwen3 forgets the width of a head).
COMPARED = ("llama", "qwen2", "phi3", "gemma2", "gemma3", "starcoder2", "gpt2")
#: Fields of the configuration that decide what a model computes.
DECISIVE = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps",
    "tie_word_embeddings", "rope_parameters", "hidden_act", "hidden_activation", "sliding_window",
    "attn_logit_softcapping", "final_logit_softcapping", "layer_types", "rope_local_base_freq",
)  # fmt: skip


@pytest.mark.export
@pytest.mark.parametrize("architecture", COMPARED)
def test_transformers_loads_the_same_model(tmp_path: Path, architecture: str) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    path = files.write_family(tmp_path / "tiny.gguf", architecture)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype="float32")
    ours = GGUFCheckpoint(path)
    present = set(ours.names())
    for name, parameter in model.named_parameters():
        assert name in present, name
        assert np.array_equal(ours.tensor(name).all(), parameter.detach().numpy()), name
    config = CONFIG_MAPPING[ours.config["model_type"]].from_dict(dict(ours.config))
    for field in DECISIVE:
        if hasattr(model.config, field):
            assert getattr(config, field, None) == getattr(model.config, field), field
    assert getattr(model.config, "head_dim", files.WIDTH) == config.head_dim == files.WIDTH


@pytest.mark.export
@pytest.mark.parametrize("architecture", sorted(set(files.LAYER_TENSORS) - set(COMPARED)))
def test_every_parameter_of_the_family_is_there(tmp_path: Path, architecture: str) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    ours = GGUFCheckpoint(files.write_family(tmp_path / "tiny.gguf", architecture))
    config = CONFIG_MAPPING[ours.config["model_type"]].from_dict(dict(ours.config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    wanted = {name: matrix_shape(tuple(parameter.shape)) for name, parameter in model.named_parameters()}
    read = checked_reader(ours.tensor, ours.names(), wanted, {})
    assert wanted == {name: read(name).shape for name in wanted}
    assert sum(map(math.prod, wanted.values())) == sum(math.prod(ours.tensor(name).shape) for name in ours.names())


def test_experts_that_lie_apart_in_a_gguf_file_are_refused(tmp_path: Path) -> None:
    """As converters wrote them before they put those of a layer together."""
    path = files.write_family(tmp_path / "tiny.gguf", "llama", expert_count=4, expert_used_count=2)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_down_exps\.weight") as caught:
        GGUFCheckpoint(path)
    assert "current converter" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("architecture", "layers", "scalar"), [("gemma2", 46, 4), ("gemma3", 62, 4), ("gemma3", 26, 8)]
)
def test_the_largest_gemmas_scale_by_hidden_over_heads(
    tmp_path: Path, architecture: str, layers: int, scalar: int
) -> None:
    metadata = files.sizes(
        **{"block_count": layers, "embedding_length": 64, "attention.head_count": 16},
        **{"attention.key_length": 8, "attention.sliding_window": 32},
    )
    tensors = {"token_embd.weight": (np.zeros((files.VOCAB, 64), np.float32), "F32")}
    path = files.write_gguf(tmp_path / "x.gguf", architecture, metadata, tensors)
    assert GGUFCheckpoint(path).config["query_pre_attn_scalar"] == scalar


def test_neox_keeps_q_k_v_together_in_each_head(tmp_path: Path) -> None:
    path = files.write_family(tmp_path / "tiny.gguf", "gptneox")
    ours = GGUFCheckpoint(path).tensor("gpt_neox.layers.0.attention.query_key_value.weight").all()
    stored = _stored(path, "blk.0.attn_qkv.weight")
    for head in range(files.HEADS):
        for part in range(3):
            first = (head * 3 + part) * files.WIDTH
            of_file = part * files.HIDDEN + head * files.WIDTH
            assert np.array_equal(ours[first : first + files.WIDTH], stored[of_file : of_file + files.WIDTH])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_moved_rows_keep_the_codes_of_the_file(tmp_path: Path, kind: str) -> None:
    """q and k come back in their own order without being rounded anew."""
    exact = GGUFCheckpoint(files.write_family(tmp_path / "f32.gguf", "llama"))
    ours = GGUFCheckpoint(files.write_family(tmp_path / "small.gguf", "llama", kind))
    name = "model.layers.1.self_attn.q_proj.weight"
    source = ours.tensor(name)
    near = source.all()
    assert np.abs(near - exact.tensor(name).all()).max() < 0.5
    forms = {"Q8_0": QuantForm(8, 32), "Q4_0": QuantForm(4, 32), "Q4_1": QuantForm(4, 32, minima=True)}
    form = forms[kind]
    assert source.quantised == form
    codes = source.quantised_rows(5, 21)
    scales = np.repeat(codes.scales, form.group, axis=1)
    if codes.minima is None:
        rebuilt = (codes.values.astype(np.float32) - (1 << (form.bits - 1))) * scales
    else:
        rebuilt = codes.values.astype(np.float32) * scales + np.repeat(codes.minima, form.group, axis=1)
    assert np.array_equal(rebuilt, near[5:21])
    assert np.array_equal(QuantisedWeight(source, form).dequantised_rows(0, source.shape[0]), near)


def test_llama3_scaling_is_recognised_from_its_factors(tmp_path: Path) -> None:
    wavelength = 2 * np.pi * 500000.0 ** (np.arange(0, files.WIDTH, 2) / files.WIDTH)
    smooth = np.clip((8192 / wavelength - 1) / 3, 0, 1)
    factors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    base = files.write_family(tmp_path / "base.gguf", "llama", **{"rope.freq_base": 500000.0})
    tensors = {name: (_stored(base, name), "F32") for name in _names(base)}
    metadata = files.sizes(**{"rope.dimension_count": files.WIDTH, "rope.freq_base": 500000.0})
    good = files.write_gguf(
        tmp_path / "good.gguf", "llama", metadata, {**tensors, "rope_freqs.weight": (factors, "F32")}
    )
    assert GGUFCheckpoint(good).config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    odd = {**tensors, "rope_freqs.weight": (factors[::-1].copy(), "F32")}
    with pytest.raises(UnsupportedModel, match="unknown rule"):
        GGUFCheckpoint(files.write_gguf(tmp_path / "odd.gguf", "llama", metadata, odd))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"rope.scaling.type": "longrope"}, "RoPE scaling 'longrope'"),
        ({"attention.head_count_kv": [2, 4]}, "differ in attention.head_count_kv"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    architecture = changes.pop("general.architecture", "llama")
    if architecture == "llama":
        path = files.write_family(tmp_path / "x.gguf", "llama", **changes)
    else:
        embedding = np.zeros((4, 32), np.float32)
        path = files.write_gguf(tmp_path / "x.gguf", architecture, {}, {"token_embd.weight": (embedding, "F32")})
    with pytest.raises(UnsupportedModel, match=said):
        GGUFCheckpoint(path)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (np.zeros((4, 256), np.float32), "TQ1_0")}
    with pytest.raises(UnsupportedModel, match=r"token_embd.weight as TQ1_0"):
        GGUFCheckpoint(files.write_gguf(tmp_path / "x.gguf", "llama", files.sizes(), tensors))


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "context_length"])
@pytest.mark.parametrize("value", [0, "many", None])
def test_metadata_that_lacks_a_size_is_refused(tmp_path: Path, key: str, value: object) -> None:
    metadata = {name: item for name, item in files.sizes().items() if name != key or value is not None}
    if value is not None:
        metadata[key] = value
    tensors = {"token_embd.weight": (np.zeros((files.VOCAB, files.HIDDEN), np.float32), "F32")}
    with pytest.raises(CheckpointError, match=f"no usable llama.{key}"):
        GGUFCheckpoint(files.write_gguf(tmp_path / "x.gguf", "llama", metadata, tensors))


def test_the_tokenizer_and_the_template_come_from_the_metadata(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ours = GGUFCheckpoint(files.write_family(tmp_path / "tiny.gguf", "llama"))
    ours.write_tokenizer(tmp_path / "out")
    built = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    text = "<|start|>hello world 12 é🎉<|stop|>"
    ids = built.encode(text).ids
    assert ids[0] == 1 and ids[-1] == 2
    assert built.token_to_id("hello") in ids
    # Digits stand alone in this family, although a merge would join them.
    assert built.token_to_id("12") not in ids
    assert built.decode(ids, skip_special_tokens=False) == text
    assert (tmp_path / "out" / "chat_template.jinja").read_text().startswith("{% for m in messages %}")
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"], settings["add_bos_token"]) == (
        "<|start|>",
        "<|stop|>",
        False,
    )
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _sentencepiece(**changes: Any) -> dict[str, Any]:
    """A vocabulary as sentencepiece makes it: bytes, letters, joined pieces, and runs of spaces of the user."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    raw = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    pieces = [
        "▁",
        "h",
        "e",
        "l",
        "o",
        "w",
        "r",
        "d",
        "▁h",
        "el",
        "lo",
        "▁hel",
        "▁hello",
        "ld",
        "or",
        "▁w",
        "orld",
        "▁world",
    ]
    normal = [(piece, -float(number), 1) for number, piece in enumerate(pieces)]
    user = [("  ", -1000.0, 4), ("   ", -1000.0, 4), ("<tool>", -1000.0, 4)]
    tokens = [*special, *raw, *normal, *user]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token for token, _, _ in tokens],
        "tokenizer.ggml.scores": [score for _, score, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, _, kind in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": True,
        **changes,
    }


def test_a_sentencepiece_vocabulary_joins_by_score(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    GGUFCheckpoint(files.write_family(tmp_path / "tiny.gguf", "llama", **_sentencepiece())).write_tokenizer(
        tmp_path
    )
    built = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert built.encode("hello world").tokens == ["<s>", "▁hello", "▁world"]
    assert built.encode("hello   <tool>é").tokens == ["<s>", "▁hello", "▁▁▁", "<tool>", "▁", "<0xC3>", "<0xA9>"]
    for text in ("hello world", "hello   world", "é🎉 hello"):
        assert built.decode(built.encode(text).ids) == text
    assert built.token_to_id("▁▁") == 3 + 256 + 18


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "no score for each token"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "no type for each token"),
        ({"tokenizer.ggml.model": "t5"}, "kind 't5'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": ["a"]}, "rule"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "unheard"}, "rule 'unheard'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b c"]}, "cannot be built"),
        ({"tokenizer.ggml.tokens": "none"}, "holds no tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = files.write_family(tmp_path / "tiny.gguf", "llama", **_sentencepiece(**changes))
    with pytest.raises(CheckpointError, match=said):
        GGUFCheckpoint(path).write_tokenizer(tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.architecture", ["llama"], "architecture"),
        ("split.count", "two", "parts"),
        ("rope.freq_base", "wide", "freq_base"),
        ("rope.freq_base", -1.5, "freq_base"),
        ("attention.head_count_kv", "two", "head_count_kv"),
        ("attention.head_count_kv", 7, "does not fit"),
        ("attention.head_count_kv", 2**32 - 1, "does not fit"),
    ],
)
def test_metadata_of_another_type_or_size_is_named(tmp_path: Path, key: str, value: Any, said: str) -> None:
    path = files.write_family(tmp_path / "tiny.gguf", "llama", **{key: value})
    with pytest.raises(CheckpointError, match=said):
        GGUFCheckpoint(path).tensor("model.layers.0.self_attn.k_proj.weight")


@pytest.mark.slow
@pytest.mark.export
def test_the_real_model_equals_what_transformers_loads(smollm2_gguf: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype="float32")
    ours = GGUFCheckpoint(smollm2_gguf)
    for name, parameter in model.named_parameters():
        assert np.array_equal(ours.tensor(name).all(), parameter.detach().numpy()), name


def _stored(path: Path, name: str) -> Any:
    import gguf

    return next(np.array(item.data) for item in gguf.GGUFReader(path).tensors if item.name == name)


def _names(path: Path) -> list[str]:
    import gguf

    return [item.name for item in gguf.GGUFReader(path).tensors]
