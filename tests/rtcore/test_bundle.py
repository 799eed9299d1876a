"""Everything that can be wrong with a bundle is noticed, typed and named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.errors import BundleDamaged, BundleError, BundleTooNew, NotABundle, WrongTarget
from rtcore import seal
from rtcore.bundle import Bundle
from rtcore.manifest import FORMAT, GOLDEN_FILE, MANIFEST_FILE, FileEntry, Variant
from tests.rtcore.handmade import GRAPH, WEIGHTS, manifest_of, replace_file, rewrite, write_bundle

FILES = [MANIFEST_FILE, GRAPH, WEIGHTS, GOLDEN_FILE, "tokenizer/tokenizer.json"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_bundle(tmp_path_factory.mktemp("bundle") / "model", with_graph=False)
    (folder / GRAPH).write_bytes(b"\x08\x0a" * 30)
    replace_file(folder, GRAPH, b"\x08\x0a" * 30)
    return folder


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def refused(path: Path, error: type[BundleError], *, check: str = "full") -> BundleError:
    """Opening must fail with exactly this error, which says what to do."""
    with pytest.raises(BundleError) as caught:
        Bundle.open(path, check)  # type: ignore[arg-type]
    assert type(caught.value) is error
    assert caught.value.remedy
    return caught.value


def test_a_sound_bundle_opens(bundle: Path) -> None:
    for check in ("full", "sizes"):
        with Bundle.open(str(bundle), check) as opened:  # type: ignore[arg-type]
            assert opened.path == bundle.resolve()
            assert opened.manifest == manifest_of(bundle)
            assert opened.file(WEIGHTS).read_bytes() == (bundle / WEIGHTS).read_bytes()


def test_it_can_be_moved_and_opened_through_a_link(bundle: Path) -> None:
    moved = bundle.rename(bundle.parent / "elsewhere")
    (moved.parent / "link").symlink_to(moved)
    assert Bundle.open(moved.parent / "link").path == moved.resolve()


class TestNotABundle:
    def test_nothing_there(self, tmp_path: Path) -> None:
        assert "does not exist" in refused(tmp_path / "none", NotABundle).what

    @pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
    def test_a_path_that_cannot_be(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        assert "does not exist" in refused(tmp_path / name, NotABundle).what

    @pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
    def test_a_checkpoint_file(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"GGUF")
        assert "ortolan export" in refused(tmp_path / name, NotABundle).remedy

    def test_a_name_that_is_not_unicode(self, bundle: Path) -> None:
        moved = bundle.rename(bundle.parent / os.fsdecode(b"b\xff"))
        assert "UTF-8" in refused(moved, NotABundle).why

    def test_a_checkpoint_folder(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert "ortolan export" in refused(tmp_path, NotABundle).remedy

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert MANIFEST_FILE in refused(tmp_path, NotABundle).why

    def test_its_manifest(self, bundle: Path) -> None:
        assert str(bundle) in refused(bundle / MANIFEST_FILE, NotABundle).remedy


class TestDamage:
    @pytest.mark.parametrize("name", FILES)
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_a_flipped_bit_anywhere(self, pristine: Path, name: str, data: st.DataObject) -> None:
        content = (pristine / name).read_bytes()
        place = data.draw(st.integers(0, len(content) - 1))
        bit = data.draw(st.integers(0, 7))
        try:
            (pristine / name).write_bytes(
                content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
            )
            with pytest.raises((BundleDamaged, BundleTooNew)) as caught:
                Bundle.open(pristine)
            assert caught.value.param == name
        finally:
            (pristine / name).write_bytes(content)

    @pytest.mark.parametrize("name", FILES[1:])
    @pytest.mark.parametrize("check", ["full", "sizes"])
    def test_a_truncated_file(self, bundle: Path, name: str, check: str) -> None:
        content = (bundle / name).read_bytes()
        (bundle / name).write_bytes(content[:-1])
        error = refused(bundle, BundleDamaged, check=check)
        assert error.param == name and f"{len(content) - 1} bytes instead of {len(content)}" in error.what

    @pytest.mark.parametrize("name", FILES[1:])
    @pytest.mark.parametrize("check", ["full", "sizes"])
    def test_a_missing_file(self, bundle: Path, name: str, check: str) -> None:
        (bundle / name).unlink()
        error = refused(bundle, BundleDamaged, check=check)
        assert error.param == name and "is missing" in error.what

    def test_a_folder_in_place_of_a_file(self, bundle: Path) -> None:
        (bundle / WEIGHTS).unlink()
        (bundle / WEIGHTS).mkdir()
        assert refused(bundle, BundleDamaged).param == WEIGHTS

    def test_a_file_listed_twice(self, bundle: Path) -> None:
        files = manifest_of(bundle).files
        rewrite(bundle, files=(*files, files[0]))
        assert "twice" in refused(bundle, BundleDamaged).what

    @pytest.mark.parametrize("name", [GRAPH, WEIGHTS, GOLDEN_FILE])
    def test_a_used_file_that_is_not_listed(self, bundle: Path, name: str) -> None:
        rewrite(bundle, files=tuple(entry for entry in manifest_of(bundle).files if entry.path != name))
        assert refused(bundle, BundleDamaged).param == name

    def test_a_skeleton_lacks_weights_only(self, bundle: Path) -> None:
        files = tuple(entry for entry in manifest_of(bundle).files if entry.path != WEIGHTS)
        rewrite(bundle, files=files, skeleton=True)
        assert Bundle.open(bundle).manifest.skeleton


class TestManifest:
    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"null", b'"x"', b"{}", b'{"format": "1"}', b'{"format": 1}', b"\xff\xfe", b"[" * 5000],
    )
    def test_what_is_no_manifest(self, bundle: Path, content: bytes) -> None:
        (bundle / MANIFEST_FILE).write_bytes(content)
        assert refused(bundle, BundleDamaged).param == MANIFEST_FILE

    @pytest.mark.parametrize("number", [0, -1])
    def test_a_format_that_never_was(self, bundle: Path, number: int) -> None:
        rewrite(bundle, format=number)
        refused(bundle, BundleDamaged)

    def test_a_newer_format_is_told_apart_from_damage(self, bundle: Path) -> None:
        (bundle / MANIFEST_FILE).write_text(f'{{"format": {FORMAT + 1}, "anything": "else"}}')
        error = refused(bundle, BundleTooNew)
        assert str(FORMAT + 1) in error.what and str(FORMAT) in error.why and "Update" in error.remedy

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_a_field_of_a_wrong_type_is_named(self, pristine: Path, data: st.DataObject) -> None:
        good = (pristine / MANIFEST_FILE).read_bytes()
        tree = msgspec.json.decode(good)
        field = data.draw(st.sampled_from(sorted(set(tree) - {"format"})))
        wrong = data.draw(st.sampled_from([object, 1.5, "wrong", [[3]], None]))
        tree[field] = {"a": {"b": []}} if wrong is object else wrong
        try:
            (pristine / MANIFEST_FILE).write_bytes(msgspec.json.encode(tree))
            with pytest.raises(BundleDamaged) as caught:
                Bundle.open(pristine)
        finally:
            (pristine / MANIFEST_FILE).write_bytes(good)
        assert f"$.{field}" in caught.value.why or "seal" in caught.value.why or field in caught.value.why

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            (("dimensions", "vocab_size"), 0),
            (("dimensions", "context_length"), -4),
            (("dimensions", "vocab_size"), 2**62),
            (("dimensions", "layers"), 2**70),
            (("text", "bos_id"), -1),
            (("text", "pad_id"), 2**31),
            (("text", "stop_ids"), [3, 2**70]),
            (("variants", 0, "cache_tensors", 1, "group"), 2),
            (("variants", 0, "cache_tensors", 1, "shape"), [1, 0]),
            (("variants", 0, "cache_tensors", 1, "shape"), []),
        ],
    )
    def test_numbers_that_cannot_be(self, bundle: Path, place: tuple[str | int, ...], value: object) -> None:
        tree = msgspec.json.decode((bundle / MANIFEST_FILE).read_bytes())
        inner = tree
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        (bundle / MANIFEST_FILE).write_bytes(msgspec.json.encode(tree))
        error = refused(bundle, BundleDamaged)
        assert error.param == MANIFEST_FILE and "seal" not in error.why

    def test_white_space_counts(self, bundle: Path) -> None:
        content = (bundle / MANIFEST_FILE).read_bytes()
        (bundle / MANIFEST_FILE).write_bytes(content + b"\n")
        assert "seal" in refused(bundle, BundleDamaged).why

    def test_an_unsealed_manifest(self, bundle: Path) -> None:
        (bundle / MANIFEST_FILE).write_bytes(msgspec.json.encode(manifest_of(bundle)))
        assert "seal" in refused(bundle, BundleDamaged).why

    def test_sealing_twice_changes_nothing(self, bundle: Path) -> None:
        assert seal.encode(manifest_of(bundle)) == (bundle / MANIFEST_FILE).read_bytes()


OUTSIDE = ["../x", "a/../../x", "/etc/passwd", "..", "a/..", "./a", "a//b", "a\\b", "c:/x", "a\0b", "", ".", "a\n"]


class TestLeaving:
    @pytest.mark.parametrize("name", OUTSIDE)
    def test_names_in_the_manifest(self, bundle: Path, name: str) -> None:
        files = manifest_of(bundle).files
        rewrite(bundle, files=(*files, FileEntry(name, 0, "0" * 64)))
        error = refused(bundle, BundleDamaged, check="sizes")
        assert error.param == name and "leaves the bundle" in error.what

    @pytest.mark.parametrize("name", OUTSIDE)
    def test_names_asked_for(self, bundle: Path, name: str) -> None:
        with pytest.raises(BundleDamaged):
            Bundle.open(bundle, "sizes").file(name)

    @pytest.mark.parametrize("target", ["file", "folder"])
    def test_links_out(self, bundle: Path, target: str) -> None:
        outside = bundle.parent / "outside"
        if target == "file":
            shutil.move(bundle / WEIGHTS, outside)
            (bundle / WEIGHTS).symlink_to(outside)
        else:
            shutil.move(bundle / "weights", outside)
            (bundle / "weights").symlink_to(outside)
        assert refused(bundle, BundleDamaged).param == WEIGHTS

    def test_links_inside_are_fine(self, bundle: Path) -> None:
        shutil.move(bundle / WEIGHTS, bundle / "blob")
        (bundle / WEIGHTS).symlink_to(bundle / "blob")
        assert Bundle.open(bundle).manifest.name == "handmade"

    def test_a_link_in_a_circle(self, bundle: Path) -> None:
        (bundle / WEIGHTS).unlink()
        (bundle / WEIGHTS).symlink_to(bundle / WEIGHTS)
        assert refused(bundle, BundleDamaged).param == WEIGHTS


class TestVariant:
    def test_default_and_named(self, bundle: Path) -> None:
        opened = Bundle.open(bundle)
        assert opened.variant(None, "cpu") is opened.variant("fp32", "cpu") is opened.manifest.variants[0]

    @pytest.mark.parametrize(
        ("precision", "target", "param"),
        [("int4", "cpu", "precision"), ("fp32", "cuda", "target"), (None, "tpu", "target")],
    )
    def test_what_is_not_there(self, bundle: Path, precision: str | None, target: str, param: str) -> None:
        with pytest.raises(WrongTarget, match="fp32 for cpu") as caught:
            Bundle.open(bundle).variant(precision, target)
        assert caught.value.param == param


class TestGraph:
    def variant(self, bundle: Path) -> Variant:
        return manifest_of(bundle).variants[0]

    @pytest.mark.parametrize("content", [b"not a model", b"\x3a\xff\x01", b"\x3a", b"\xff" * 12])
    def test_what_is_no_model(self, bundle: Path, content: bytes) -> None:
        replace_file(bundle, GRAPH, content)
        with pytest.raises(BundleDamaged) as caught:
            Bundle.open(bundle).read_graph(self.variant(bundle))
        assert caught.value.param == GRAPH
