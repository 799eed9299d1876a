"""Bundles appear complete or not at all: layout, sharing, hashes, versions, full disks and killed writers."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from export.quantise import QuantisedWeight
from export.stored import Plain
from export.tensors import StoredTensor
from export.weights import PAGE, WeightPlan
from export.writer import BundleWriter
from ops.errors import CheckpointError, ConfigError, NotABundle, OutOfDisk, VerificationFailed
from ops.layout import QuantForm
from rtcore.bundle import Bundle
from rtcore.manifest import Dimensions, Manifest, Source, TextInfo
from tests.export.sources import ArraySource

GENERATOR = np.random.default_rng(4)
A = ArraySource(GENERATOR.standard_normal((50, 64), dtype=np.float32), "a")
B = ArraySource(GENERATOR.standard_normal((30, 64), dtype=np.float32), "b")
MANIFEST = Manifest(
    name="m",
    family="Llama",
    version="",
    source=Source("random", "random:1"),
    dimensions=Dimensions(1, 1, 1, 1, 1, 1, 1, 1),
    variants=(),
    default_precision="fp32",
    text=TextInfo(),
    files=(),
)


class Wrong(StoredTensor):
    """A tensor that yields less than it promises, or a giant that yields nothing."""

    def __init__(self, promised: int) -> None:
        self.key = f"wrong:{promised}"
        self.dtype = np.dtype(np.uint8)
        self.shape = (promised,)

    def chunks(self) -> Iterator[NDArray[Any]]:
        yield np.zeros(10, np.uint8)

    def recipe(self) -> dict[str, Any]:
        return {"op": "wrong"}


def quiet(_: int) -> None:
    return None


def write(target: Path, manifest: Manifest = MANIFEST, replace: bool = False, **more: bytes) -> Manifest:
    with BundleWriter(target, replace) as writer:
        writer.place("weights/fp32", {"a": Plain(A), "b": Plain(B)})
        writer.write_weights(quiet)
        for name, content in more.items():
            writer.write(name, content)
        return writer.finish(manifest)


def test_the_bundle_opens_and_its_bytes_are_the_tensors(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    tensors = {"a": Plain(A), "b": Plain(B), "q": QuantisedWeight(B, QuantForm(8, 32, minima=True))}
    with BundleWriter(target) as writer:
        places = writer.place("weights/int8", tensors)
        written: list[int] = []
        writer.write_weights(written.append)
        assert not target.exists()
        writer.finish(MANIFEST)
    bundle = Bundle.open(target)
    shards = {"plain": "weights/int8/plain/00000.bin", "cpu-vnni": "weights/int8/cpu-vnni/00000.bin"}
    content = {layout: (target / path).read_bytes() for layout, path in shards.items()}
    assert sum(written) == sum(map(len, content.values()))
    for name, tensor in tensors.items():
        place = places[name]
        assert place.offset % PAGE == 0 and place.path == shards[tensor.layout]
        expected = b"".join(chunk.tobytes() for chunk in tensor.chunks())
        assert content[tensor.layout][place.offset : place.offset + place.nbytes] == expected
    entries = {entry.path: entry.sha256 for entry in bundle.manifest.files}
    assert all(entries[path] == hashlib.sha256(content[layout]).hexdigest() for layout, path in shards.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_equal_tensors_are_stored_once_and_shards_are_bounded() -> None:
    plan = WeightPlan(shard_bytes=20_000)
    first = plan.add("weights/fp32/plain", [Plain(A), Plain(B), Plain(A)])
    second = plan.add("weights/int8/plain", [Plain(B), Plain(A, "float16")])
    assert first[0] == first[2] and second[0] == first[1]
    # 12 800 bytes, then 7 680 from the next page on: the second would end beyond the bound.
    assert [shard.path for shard in plan.shards] == [
        "weights/fp32/plain/00000.bin",
        "weights/fp32/plain/00001.bin",
        "weights/int8/plain/00000.bin",
    ]
    assert all(shard.size <= 20_000 for shard in plan.shards)


def test_a_tensor_beyond_the_bound_has_a_shard_of_its_own() -> None:
    plan = WeightPlan(shard_bytes=1000)
    places = plan.add("w", [Plain(B), Plain(A)])
    assert [place.path for place in places] == ["w/00000.bin", "w/00001.bin"]


def test_the_version_follows_the_content_alone(tmp_path: Path) -> None:
    first = write(tmp_path / "a", msgspec.structs.replace(MANIFEST, created="now", tools={"x": "1"}))
    again = write(tmp_path / "b", msgspec.structs.replace(MANIFEST, created="later", tools={"x": "2"}))
    assert first.version == again.version and len(first.version) == 16
    assert write(tmp_path / "c", **{"notes.txt": b"x"}).version != first.version
    assert write(tmp_path / "d", msgspec.structs.replace(MANIFEST, name="n")).version != first.version


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    broken = pytest.raises(CheckpointError, match="10 bytes where its shape promises 99")
    with broken, BundleWriter(tmp_path / "bundle") as writer:
        writer.place("w", {"x": Wrong(99)})
        writer.write_weights(quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_prevents_publishing(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        Bundle.open(folder)
        raise VerificationFailed("no")

    with pytest.raises(VerificationFailed), BundleWriter(tmp_path / "bundle") as writer:
        writer.finish(MANIFEST, check)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    first = write(target)
    with pytest.raises(ConfigError, match="exists already") as caught:
        write(target)
    assert "--force" in caught.value.remedy
    assert Bundle.open(target).manifest.version == first.version
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    for replace in (True, False):
        with pytest.raises(ConfigError, match=r"exists already|is not a bundle"):
            write(precious, replace=replace)
    assert (precious / "thesis.txt").read_text() == "mine"


def test_force_replaces_a_bundle(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    first = write(target)
    second = write(target, replace=True, **{"notes.txt": b"new"})
    assert Bundle.open(target).manifest.version == second.version != first.version
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_interrupt_while_replacing_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "bundle"
    first = write(target)
    rename = Path.rename

    def interrupted(path: Path, to: Path) -> Path:
        if path.name.startswith(".bundle.partial-"):
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(target, replace=True, **{"notes.txt": b"new"})
    assert Bundle.open(target).manifest.version == first.version
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        BundleWriter(tmp_path / "file" / "bundle")


def test_two_exports_to_one_target_do_not_mix(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "bundle"), pytest.raises(ConfigError, match="Another export is writing"):
        BundleWriter(tmp_path / "bundle")
    write(tmp_path / "bundle")


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OutOfDisk, match="is full") as caught, BundleWriter(tmp_path / "bundle") as writer:
        writer.place("w", {"x": Wrong(1 << 60)})
        writer.write_weights(quiet)
    assert "needs 1152921504.67 GB" in caught.value.why
    assert list(tmp_path.iterdir()) == []


WRITER = """
    import sys
    from pathlib import Path
    import numpy as np
    from export.checkpoint.random import RandomCheckpoint
    from export.stored import Plain
    from export.termination import clean_termination
    from export.writer import BundleWriter
    from ops.errors import OutOfDisk
    from tests.export.test_writer import MANIFEST

    shape = (1 << int(sys.argv[2]), 1024)
    source = RandomCheckpoint({"model_type": "llama"}, {"w": shape}, 1).tensor("w")
    try:
        with clean_termination(), BundleWriter(Path(sys.argv[1])) as writer:
            writer.place("w", {"w": Plain(source)})
            print("writing", flush=True)
            writer.write_weights(lambda count: None)
            writer.finish(MANIFEST)
    except OutOfDisk as error:
        sys.exit(f"{error.what} {error.why}")
"""


def _start(target: Path, power: int, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(target), str(power)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], **more,
    )  # fmt: skip


def test_a_file_that_cannot_grow_ends_in_out_of_disk(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, 10 << 20))

    child = _start(tmp_path / "bundle", 13, preexec_fn=limit)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1, said
    assert "is full" in said and "needs" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def _start_and_signal(target: Path, number: signal.Signals) -> int:
    """Signal a writer in the middle of its work; its exit code."""
    child = _start(target, 19)
    assert child.stdout is not None and child.stdout.readline() == "writing\n"
    deadline = time.monotonic() + 30
    while not list(target.parent.glob(".bundle.partial-*/w/*/*.bin")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, number)
    child.communicate()
    return child.returncode


def test_a_killed_writer_leaves_no_bundle_and_the_next_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    assert _start_and_signal(target, signal.SIGKILL) == -signal.SIGKILL
    (left,) = tmp_path.glob(".bundle.partial-*")
    assert not target.exists()
    for path in (target, left):
        with pytest.raises(NotABundle):
            Bundle.open(path)
    write(target)
    Bundle.open(target)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_writer_that_is_told_to_stop_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    assert _start_and_signal(tmp_path / "bundle", number) == code
    assert list(tmp_path.iterdir()) == []
