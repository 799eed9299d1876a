"""Safetensors files: what is read is what was written, and every kind of damage is named as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint.shards import Shard
from ops.errors import CheckpointError, UnsupportedModel
from tests.export.files import bfloat16, write_safetensors

GENERATOR = np.random.default_rng(2)
WEIGHT = GENERATOR.standard_normal((7, 5), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "model.safetensors"
    tensors = {
        "full": WEIGHT,
        "half": WEIGHT.astype(np.float16),
        "brain": bfloat16(WEIGHT),
        "vector": WEIGHT[0],
        "scalar": WEIGHT[0, 0].reshape(()),
        "steps": np.arange(3),
    }
    write_safetensors(target, tensors)
    return target


def test_rows_of_every_float_type_come_as_float32(path: Path) -> None:
    shard = Shard(path)
    assert np.array_equal(shard.read("full", 2, 5), WEIGHT[2:5])
    assert np.array_equal(shard.read("half", 0, 7), WEIGHT.astype(np.float16).astype(np.float32))
    brain = (bfloat16(WEIGHT).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(shard.read("brain", 6, 7), brain[6:])
    assert np.array_equal(shard.read("vector", 1, 4), WEIGHT[0, 1:4])
    assert shard.read("full", 3, 3).shape == (0, 5)
    shard.close()


def test_the_library_agrees(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "library.safetensors"
    library.save_file({"b": WEIGHT, "a": WEIGHT[:2].astype(np.float16)}, path, metadata={"format": "pt"})
    shard = Shard(path)
    assert shard.metadata == {"format": "pt"}
    assert np.array_equal(shard.read("b", 0, 7), WEIGHT)
    assert np.array_equal(shard.read("a", 0, 2), WEIGHT[:2].astype(np.float16).astype(np.float32))


def test_integers_are_no_weights(path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"stored as I64"):
        Shard(path).read("steps", 0, 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lost.safetensors cannot be opened"):
        Shard(tmp_path / "lost.safetensors")


def test_every_truncation_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"is damaged"):
            Shard(path)


def test_bytes_after_the_last_tensor_are_noticed(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match=r"Its tensors end"):
        Shard(path)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(path: Path) -> None:
    shard = Shard(path)
    with path.open("r+b") as file:
        file.truncate(300)
    with pytest.raises(CheckpointError, match=r"became shorter"):
        shard.read("brain", 0, 7)


def _header(entry: Any) -> bytes:
    return json.dumps({"w": entry}).encode()


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"not json",
        b"\xff\xfe",
        b'{"w": 1}',
        b'{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "w": {}}',
        b"[" * 100000,
        _header({**GOOD, "dtype": "F33"}),
        _header({**GOOD, "dtype": ["F32"]}),
        _header({**GOOD, "shape": [2, -2]}),
        _header({**GOOD, "shape": [2.0, 2]}),
        _header({**GOOD, "shape": [True, 4]}),
        _header({**GOOD, "shape": "22"}),
        _header({**GOOD, "shape": [2, 3]}),
        _header({**GOOD, "data_offsets": [0, 16, 16]}),
        _header({**GOOD, "data_offsets": [16, 0]}),
        _header({**GOOD, "shape": [1 << 70]}),
        _header({"dtype": "F32", "shape": [2, 2]}),
        json.dumps({"a": GOOD, "b": GOOD}).encode(),
        json.dumps({"a": {**GOOD, "shape": [2], "data_offsets": [8, 16]}}).encode(),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(CheckpointError, match=r"is damaged"):
        Shard(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(1, 255))
def test_a_flipped_byte_is_read_or_refused_but_never_crashes(path: Path, place: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= value
    damaged = path.with_name("flipped.safetensors")
    damaged.write_bytes(content)
    try:
        shard = Shard(damaged)
        for name, entry in shard.entries.items():
            shard.read(name, 0, entry.shape[0] if entry.shape else 1)
    except CheckpointError as error:
        assert damaged.name in str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_never_crash(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.safetensors"
    path.write_bytes(content)
    try:
        Shard(path)
    except CheckpointError as error:
        assert error.remedy
