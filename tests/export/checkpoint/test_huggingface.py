"""Hugging Face folders: one file, shards, tokenizer, and what may be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.huggingface import HuggingFaceCheckpoint
from export.checkpoint.open import open_checkpoint
from ops.errors import CheckpointError, UnsupportedModel
from tests.export.files import llama_config, llama_shapes, write_llama

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "sharded", llama_config(), shards=3, dtype="bfloat16")


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_shards_and_a_single_file_hold_the_same_names(tmp_path: Path, sharded: Path) -> None:
    config = llama_config()
    single = HuggingFaceCheckpoint(write_llama(tmp_path / "single", config))
    several = HuggingFaceCheckpoint(sharded)
    assert set(single.names()) == set(several.names()) == set(llama_shapes(config))
    for name, shape in llama_shapes(config).items():
        assert several.tensor(name).shape == single.tensor(name).shape == shape
    assert single.config == config
    assert (single.kind, single.name) == ("huggingface", "single")


def test_rows_are_those_of_the_whole(sharded: Path) -> None:
    source = HuggingFaceCheckpoint(sharded).tensor("model.embed_tokens.weight")
    whole = source.all()
    assert np.array_equal(source.rows(11, 40), whole[11:40])
    assert 0.04 < whole.std() < 0.06


def test_the_digest_follows_the_weights(sharded: Path) -> None:
    before = HuggingFaceCheckpoint(sharded).sha256()
    assert before == HuggingFaceCheckpoint(sharded).sha256()
    shard = sorted(sharded.glob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert HuggingFaceCheckpoint(sharded).sha256() != before


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.safetensors") as caught:
        HuggingFaceCheckpoint(sharded)
    assert "Fetch" in caught.value.remedy


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    shard = sharded / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003.safetensors is damaged") as caught:
        HuggingFaceCheckpoint(sharded)
    assert "truncated" in caught.value.why


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "passwd", "a/../../b.safetensors"]
)
def test_an_index_may_not_name_files_elsewhere(sharded: Path, file: str) -> None:
    where = json.loads((sharded / INDEX).read_text())["weight_map"]
    where["model.norm.weight"] = file
    _edit(sharded / INDEX, weight_map=where)
    with pytest.raises(CheckpointError, match=r"not a safetensors file of this folder"):
        HuggingFaceCheckpoint(sharded)


@pytest.mark.parametrize("where", [None, {}, [], {"a": 1}, "x"])
def test_an_index_without_a_map_is_refused(sharded: Path, where: object) -> None:
    _edit(sharded / INDEX, weight_map=where)
    with pytest.raises(CheckpointError, match=r"names no weights"):
        HuggingFaceCheckpoint(sharded)


def test_an_index_that_promises_what_the_shard_lacks_is_refused(sharded: Path) -> None:
    where = json.loads((sharded / INDEX).read_text())["weight_map"]
    where["model.extra.weight"] = "model-00001-of-00003.safetensors"
    _edit(sharded / INDEX, weight_map=where)
    with pytest.raises(CheckpointError, match=r"'model.extra.weight' is missing from model-00001"):
        HuggingFaceCheckpoint(sharded)


def test_an_absent_tensor_is_named(sharded: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor 'model.layers.9.mlp.up_proj.weight'"):
        HuggingFaceCheckpoint(sharded).tensor("model.layers.9.mlp.up_proj.weight")


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_foreign_quantisation_is_refused_by_name(sharded: Path, method: str) -> None:
    _edit(sharded / "config.json", quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(UnsupportedModel, match=method.upper()):
        HuggingFaceCheckpoint(sharded)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"model_type": 3}', "{}"])
def test_a_broken_config_is_named(sharded: Path, text: str) -> None:
    (sharded / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        HuggingFaceCheckpoint(sharded)


def test_old_weight_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors") as caught:
        HuggingFaceCheckpoint(tmp_path)
    assert "pytorch_model.bin" in caught.value.why
    assert "safetensors" in caught.value.remedy


def test_links_as_the_hub_cache_makes_them_are_followed(tmp_path: Path, sharded: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in sharded.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert len(list(HuggingFaceCheckpoint(snapshot).names())) == len(llama_shapes(llama_config()))


def test_the_tokenizer_is_copied_as_it_is(tmp_path: Path, sharded: Path) -> None:
    (sharded / "tokenizer.json").write_text('{"version": "1.0"}')
    (sharded / "chat_template.jinja").write_text("{{ messages }}")
    HuggingFaceCheckpoint(sharded).write_tokenizer(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["chat_template.jinja", "tokenizer.json"]


def test_a_damaged_tokenizer_is_refused(tmp_path: Path, sharded: Path) -> None:
    (sharded / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not valid JSON"):
        HuggingFaceCheckpoint(sharded).write_tokenizer(tmp_path / "out")


@pytest.mark.export
def test_an_older_tokenizer_is_converted(tmp_path: Path, sharded: Path) -> None:
    letters = ["<unk>", "h", "e", "l", "o", "he", "ll", "hell", "hello"]
    (sharded / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(letters)}))
    (sharded / "merges.txt").write_text("#version: 0.2\nh e\nl l\nhe ll\nhell o\n")
    (sharded / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>"})
    )
    HuggingFaceCheckpoint(sharded).write_tokenizer(tmp_path / "out")
    from tokenizers import Tokenizer

    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("hello").ids == [8]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("org/model", "hf download org/model"),
        ("somewhere", "Name a folder"),
    ],
)
def test_a_source_that_is_not_there(source: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist") as caught:
        open_checkpoint(Path(source))
    assert said in caught.value.remedy


def test_sources_that_are_something_else(tmp_path: Path, sharded: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither a folder nor a GGUF file") as caught:
        open_checkpoint(sharded / "model-00001-of-00003.safetensors")
    assert str(sharded) in caught.value.remedy
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"has no config\.json") as caught:
        open_checkpoint(tmp_path / "models")
    assert "a.gguf" in caught.value.remedy
