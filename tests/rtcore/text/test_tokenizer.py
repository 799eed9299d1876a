from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders

from ops.errors import BundleDamaged, BundleError, InvalidRequest
from rtcore.manifest import TextInfo
from rtcore.text.tokenizer import Tokenizer
from tests.rtcore.text.vocabularies import MAKERS, byte_level, llama_like, wrap


@pytest.mark.parametrize("written", [True, False], ids=["post-processor", "no post-processor"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_a_prompt_begins_as_the_manifest_says(written: bool, add_bos: bool) -> None:
    tokenizer = wrap(byte_level(bos=written), bos_id=0, add_bos=add_bos)
    plain = tokenizer.encode("the fox", add_special_tokens=False)
    assert 0 not in plain
    assert tokenizer.encode("the fox") == ([0, *plain] if add_bos else plain)
    assert tokenizer.encode("<s>the fox") == ([0, 0, *plain] if add_bos else [0, *plain])
    assert tokenizer.encode("") == ([0] if add_bos else [])


def test_a_prompt_is_never_cut_or_padded() -> None:
    inner = byte_level()
    inner.enable_truncation(4)
    inner.enable_padding(length=16)
    assert wrap(inner).encode("the quick brown fox jumps") == byte_level().encode("the quick brown fox jumps").ids


@pytest.mark.parametrize("text", ["\ud800", "fine until \udfff here"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        wrap(byte_level()).encode(text)


@pytest.mark.parametrize(
    ("kind", "entry", "expected"),
    [
        ("byte_level", "Ġ", b" "),
        ("byte_level", "Ġthe", b" the"),
        ("byte_level", "ð", b"\xf0"),
        ("byte_level", "<think>", b"<think>"),
        ("byte_level", "two words ☂", "two words ☂".encode()),
        ("llama_like", "▁the", b" the"),
        ("llama_like", "<0xE2>", b"\xe2"),
        ("llama_like", "é", "é".encode()),
        ("gguf_like", "▁▁", b"  "),
        ("metaspace", "▁the", b" the"),
        ("metaspace", "<0xE2>", b"<0xE2>"),
        ("llama_like", "<s>", b"<s>"),
    ],
)
def test_bytes_of_tokens(kind: str, entry: str, expected: bytes) -> None:
    tokenizer = wrap(MAKERS[kind]())
    number = tokenizer.id_of(entry)
    assert number is not None
    assert tokenizer.token_bytes(number) == expected


def test_ids_past_the_vocabulary_have_no_bytes() -> None:
    tokenizer = wrap(byte_level())
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""


def test_special_ids_are_those_marked_so() -> None:
    tokenizer = wrap(byte_level())
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.id_of("<think>") not in tokenizer.special_ids


def test_a_decoder_that_cannot_stream_is_refused_by_name() -> None:
    inner = llama_like()
    inner.decoder = decoders.WordPiece()
    with pytest.raises(BundleError, match="WordPiece"):
        wrap(inner)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BundleDamaged, match=r"tokenizer\.json"):
        Tokenizer.open(path, TextInfo())


@pytest.mark.export
@pytest.mark.parametrize("bos", [True, False])
def test_prompts_equal_those_of_transformers(bos: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    byte_level(bos).save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    ours = Tokenizer(Inner.from_file(str(tmp_path / "tokenizer.json")), TextInfo(bos_id=0, add_bos=bos))
    for text in ("", "the fox", "<s>twice", " é\n中🙂"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
