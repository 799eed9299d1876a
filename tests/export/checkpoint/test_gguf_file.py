"""The GGUF container: what is read is what was written, and damage of every region ends in a typed error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint.gguf import GGUFCheckpoint
from export.checkpoint.gguf_blocks import BLOCKS, decode_blocks, decode_floats
from export.checkpoint.gguf_file import GGUFFile
from ops.errors import CheckpointError, UnsupportedModel
from tests.export import gguf_files as files

ARRAY = np.arange(96, dtype=np.float32).reshape(3, 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    metadata = {
        "general.name": "ünï",
        "block_count": 7,
        "ratio": 0.5,
        "flag": True,
        "tokenizer.ggml.tokens": ["a", "b", "ß"],
        "numbers": [1, 2, 3],
    }
    tensors = {"m": (ARRAY, "F32"), "q": (ARRAY, "Q8_0"), "v": (ARRAY[0], "F32")}
    return files.write_gguf(tmp_path / "x.gguf", "llama", metadata, tensors)


def _header_end(path: Path) -> int:
    file = GGUFFile(path)
    end = min(info.offset for info in file.tensors.values())
    file.close()
    return end


def test_metadata_and_tensors_are_those_written(path: Path) -> None:
    file = GGUFFile(path)
    assert file.metadata["general.name"] == "ünï"
    assert file.metadata["llama.block_count"] == 7
    assert file.metadata["llama.ratio"] == 0.5
    assert file.metadata["llama.flag"] is True
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ß"]
    assert file.metadata["llama.numbers"] == [1, 2, 3]
    info = file.tensors["m"]
    assert info.shape == (3, 32)
    assert np.array_equal(decode_floats(file.rows(info, 1, 3), info.type), ARRAY[1:3])
    quantised = file.tensors["q"]
    codes = decode_blocks(file.rows(quantised, 0, 3), quantised.type)
    assert codes.values.shape == (3, 32) and codes.scales.shape == (3, 1)
    file.close()


def test_every_truncation_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"damaged|not a GGUF file"):
            GGUFFile(path)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(path: Path) -> None:
    file = GGUFFile(path)
    with path.open("r+b") as handle:
        handle.truncate(_header_end(path) + 10)
    with pytest.raises(CheckpointError, match="became shorter"):
        file.rows(file.tensors["m"], 0, 3)


@pytest.mark.parametrize(
    ("offset", "value", "error", "said"),
    [
        (0, b"GGML", CheckpointError, "not a GGUF file"),
        (4, struct.pack("<I", 1), UnsupportedModel, "GGUF version 1"),
        (4, struct.pack(">I", 3), UnsupportedModel, "GGUF version 50331648"),
        (8, struct.pack("<Q", 1 << 60), CheckpointError, "more than its"),
        (16, struct.pack("<Q", 1 << 60), CheckpointError, "more than its"),
        (24, struct.pack("<Q", 1 << 63), CheckpointError, "more than its"),
    ],
)
def test_a_header_that_lies_is_refused_at_once(
    path: Path, offset: int, value: bytes, error: type[Exception], said: str
) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        GGUFFile(path)


def test_an_array_that_claims_more_than_the_file_is_refused_at_once(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b"llama.numbers") + len(b"llama.numbers") + 4 + 4
    path.write_bytes(content[:at] + struct.pack("<Q", 1 << 40) + content[at + 8 :])
    with pytest.raises(CheckpointError, match="claims 1099511627776 items"):
        GGUFFile(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 20), value=st.integers(1, 255))
def test_a_flipped_byte_of_the_header_is_read_or_refused_but_never_crashes(
    path: Path, place: int, value: int
) -> None:
    content = bytearray(path.read_bytes())
    content[place % _header_end(path)] ^= value
    damaged = path.with_name("flipped.gguf")
    damaged.write_bytes(content)
    try:
        file = GGUFFile(damaged)
        for info in file.tensors.values():
            file.rows(info, 0, info.shape[0])
    except CheckpointError as error:
        assert damaged.name in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 20), value=st.integers(1, 255))
def test_a_flipped_byte_of_a_whole_model_never_crashes(tmp_path: Path, place: int, value: int) -> None:
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        files.write_family(whole, "gemma3")
    content = bytearray(whole.read_bytes())
    content[place % _header_end(whole)] ^= value
    damaged = tmp_path / "flipped.gguf"
    damaged.write_bytes(content)
    try:
        checkpoint = GGUFCheckpoint(damaged)
        for name in checkpoint.names():
            checkpoint.tensor(name).rows(0, 1)
        checkpoint.write_tokenizer(tmp_path / "tokenizer")
    except CheckpointError as error:
        assert str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_after_the_magic_never_crash(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + content)
    try:
        GGUFFile(path)
    except CheckpointError as error:
        assert str(path) in str(error)


def test_tensors_that_overlap_are_refused(path: Path) -> None:
    content = path.read_bytes()
    # The entry of q: name length, name, dimensions, two sizes, type, offset.
    at = content.index(struct.pack("<Q", 1) + b"q") + 9 + 4 + 16 + 4
    path.write_bytes(content[:at] + struct.pack("<Q", 0) + content[at + 8 :])
    with pytest.raises(CheckpointError, match="overlaps"):
        GGUFFile(path)


@pytest.mark.parametrize("kind", sorted(BLOCKS, key=lambda kind: kind.name), ids=lambda kind: kind.name)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_blocks_equal_the_package_bit_for_bit(kind: object, seed: int) -> None:
    import gguf

    from export.checkpoint.gguf_blocks import dequantise

    block = BLOCKS[kind]  # type: ignore[index]
    raw = np.random.default_rng(seed).integers(0, 256, (4, 3 * block.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantise(decode_blocks(raw, kind), kind)  # type: ignore[arg-type]
        theirs = gguf.dequantize(raw, kind)
    assert np.array_equal(ours, theirs, equal_nan=True)
