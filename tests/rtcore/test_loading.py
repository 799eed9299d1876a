"""load_engine: hashes are checked whatever the order, and damage beats what else goes wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops.errors import BundleDamaged, EngineError, NotABundle, ResourceError
from rtcore import loading, seal
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.manifest import GOLDEN_FILE, MANIFEST_FILE, FileEntry, Variant
from tests.rtcore.fakes import fake_manifest

SIZES = {"weights/small.bin": 10, "weights/large.bin": 5000}


class Loaded:
    """Stands for an engine; counts how many are open."""

    open = 0

    @classmethod
    def load(cls, bundle: Any, config: EngineConfig) -> Loaded:
        cls.open += 1
        return cls()

    def close(self) -> None:
        Loaded.open -= 1


class Broken:
    @classmethod
    def load(cls, bundle: Any, config: EngineConfig) -> Loaded:
        raise EngineError("The graph cannot be read.")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "SMALL_FILE", 100)
    monkeypatch.setattr("rtcore.engine.Engine", Loaded)
    Loaded.open = 0
    (tmp_path / "weights").mkdir()
    entries = []
    for name, size in SIZES.items():
        content = bytes(range(250)) * (size // 250 + 1)
        (tmp_path / name).write_bytes(content[:size])
        entries.append(FileEntry(name, size, hashlib.sha256(content[:size]).hexdigest()))
    manifest = msgspec.structs.replace(fake_manifest(), files=tuple(entries), variants=())
    (tmp_path / MANIFEST_FILE).write_bytes(seal.encode(manifest))
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def test_a_sound_bundle_loads(bundle: Path) -> None:
    loading.load_engine(bundle, EngineConfig())
    assert Loaded.open == 1


@pytest.mark.parametrize("name", SIZES)
def test_a_flipped_bit_is_found_and_the_engine_closed(bundle: Path, name: str) -> None:
    flip(bundle / name)
    with pytest.raises(BundleDamaged, match=name):
        loading.load_engine(bundle, EngineConfig())
    assert Loaded.open == 0


@pytest.mark.parametrize("name", SIZES)
def test_damage_beats_what_it_causes(bundle: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtcore.engine.Engine", Broken)
    with pytest.raises(EngineError, match="graph"):
        loading.load_engine(bundle, EngineConfig())
    flip(bundle / name)
    with pytest.raises(BundleDamaged, match=name):
        loading.load_engine(bundle, EngineConfig())


def test_too_little_memory_is_said_in_words(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(bundle: Any, config: EngineConfig) -> Loaded:
        raise MemoryError

    monkeypatch.setattr(Loaded, "load", load)
    with pytest.raises(ResourceError, match="cache_bytes"):
        loading.load_engine(bundle, EngineConfig())


def test_sizes_alone_hash_nothing(bundle: Path) -> None:
    flip(bundle / "weights/large.bin")
    loading.load_engine(bundle, EngineConfig(check="sizes"))
    (bundle / "weights/large.bin").write_bytes(b"short")
    with pytest.raises(BundleDamaged, match=r"large\.bin"):
        loading.load_engine(bundle, EngineConfig(check="sizes"))
    with pytest.raises(NotABundle):
        loading.load_engine(bundle / "weights", EngineConfig())


def test_only_what_the_run_reads_is_hashed(bundle: Path) -> None:
    """Of two precisions with a shared sample graph and a weight file each; what no variant names is hashed too."""
    (bundle / "weights/large.bin").rename(bundle / "weights/other.bin")
    names = [
        "weights/other.bin",
        "weights/small.bin",
        "sample.onnx",
        "a.onnx",
        "b.onnx",
        "tokenizer.json",
        GOLDEN_FILE,
    ]
    entries = []
    for name in names:
        (bundle / name).write_bytes(name.encode())
        entries.append(FileEntry(name, len(name), hashlib.sha256(name.encode()).hexdigest()))

    def variant(precision: str, step: str, weights: str) -> Variant:
        return Variant(precision, "cpu", step, (weights,), (), (), sample="sample.onnx")

    variants = (variant("a", "a.onnx", "weights/small.bin"), variant("b", "b.onnx", "weights/other.bin"))
    manifest = msgspec.structs.replace(
        fake_manifest(), files=tuple(entries), variants=variants, default_precision="a", golden=True
    )
    (bundle / MANIFEST_FILE).write_bytes(seal.encode(manifest))
    assert [entry.path for entry in manifest.used("b", "cpu")] == [
        names[0],
        "sample.onnx",
        "b.onnx",
        "tokenizer.json",
    ]
    assert manifest.used("fp32", "cpu") == list(manifest.files)
    for name in names:
        flip(bundle / name)
        if name in (names[0], "b.onnx", GOLDEN_FILE):
            loading.load_engine(bundle, EngineConfig())
        else:
            with pytest.raises(BundleDamaged, match=name):
                loading.load_engine(bundle, EngineConfig())
        with pytest.raises(BundleDamaged, match=name):
            Bundle.open(bundle)
        flip(bundle / name)
