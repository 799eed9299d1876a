"""Bundle: the reader of a bundle directory. It trusts nothing that the manifest says about files."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Self

import msgspec

from ops.errors import BundleDamaged, BundleTooNew, NotABundle, WrongTarget
from rtcore.graph_files import external_locations
from rtcore.hashing import check_hashes
from rtcore.manifest import FORMAT, GOLDEN_FILE, MANIFEST_FILE, FileEntry, Manifest, Variant
from rtcore.seal import intact

_MAX_MANIFEST_BYTES = 64 << 20
_COPY_AGAIN = "Copy the bundle again or export it anew."


class _Format(msgspec.Struct):
    """What every format's manifest has."""

    format: int


class Bundle:
    """An open bundle. Attributes: path (absolute, without symbolic links), manifest."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: str | Path, check: Literal["full", "sizes"] = "full") -> Bundle:
        """Open the bundle at `path`; full hashes every file, sizes only compares sizes.

        Raises NotABundle, BundleTooNew, or BundleDamaged naming the first file that is wrong.
        """
        root = _existing_directory(Path(path))
        bundle = cls(root, _read_manifest(root / MANIFEST_FILE, Path(path)))
        bundle._check_names()
        files = [(bundle.file(entry.path), entry) for entry in bundle.manifest.files]
        for file, entry in files:
            _check_size(file, entry)
        if check == "full":
            check_hashes(files)
        return bundle

    def variant(self, precision: str | None, target: str) -> Variant:
        """The variant of a precision (None: the default one) for a target.

        Raises WrongTarget, listing what the bundle holds.
        """
        wanted = precision or self.manifest.default_precision
        for variant in self.manifest.variants:
            if variant.precision == wanted and variant.target == target:
                return variant
        held = ", ".join(f"{variant.precision} for {variant.target}" for variant in self.manifest.variants)
        raise WrongTarget(
            f"The bundle {self.path.name} has no {wanted} for {target}.",
            why=f"It holds {held or 'no variant at all'}.",
            remedy="Choose one of these, or export the model with the precision and target that you want.",
            param="precision" if any(v.target == target for v in self.manifest.variants) else "target",
        )

    def file(self, relative: str) -> Path:
        """The absolute path of a file of the bundle; it need not exist.

        Raises BundleDamaged when the name or a symbolic link leads out of the bundle.
        """
        parts = PurePosixPath(relative).parts
        plain = relative and relative == "/".join(parts) and not {"..", "/"} & set(parts) and relative.isprintable()
        if not plain or "\\" in relative or ":" in relative:
            raise _leaves(relative)
        path = self.path / relative
        if not Path(os.path.realpath(path)).is_relative_to(self.path):
            raise _leaves(relative)
        return path

    def read_graph(self, variant: Variant, name: str | None = None) -> bytes:
        """A serialised graph of a variant: `variant.sample`, or the step graph where no name is given.

        Raises BundleDamaged when it is no ONNX model, or maps a file that leaves the bundle or that the manifest
        does not name for this variant.
        """
        name = name or variant.step
        graph = self.file(name).read_bytes()
        try:
            locations = external_locations(graph)
        except ValueError as error:
            raise BundleDamaged(
                f"{name} is not an ONNX model.", why=f"{error}.", remedy=_COPY_AGAIN, param=name
            ) from error
        for location in sorted(locations):
            self.file(location)
            if location not in variant.weights:
                raise BundleDamaged(
                    f"{name} maps {location}, which the manifest does not name for it.",
                    remedy="Do not use this bundle; export the model anew.",
                    param=name,
                )
        return graph

    def close(self) -> None:
        """Nothing is held open; here so that users need not know that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_names(self) -> None:
        """Every file is listed once, and what the variants name is listed; a skeleton's weights may lack."""
        listed = {entry.path for entry in self.manifest.files}
        if len(listed) != len(self.manifest.files):
            raise BundleDamaged(f"{MANIFEST_FILE} lists a file twice.", remedy=_COPY_AGAIN, param=MANIFEST_FILE)
        named = [GOLDEN_FILE] if self.manifest.golden else []
        for variant in self.manifest.variants:
            named += [variant.step, *([variant.sample] if variant.sample else [])]
            if not self.manifest.skeleton:
                named += variant.weights
        for name in named:
            if name not in listed:
                raise BundleDamaged(
                    f"{MANIFEST_FILE} uses {name} but does not list it among its files.",
                    remedy=_COPY_AGAIN,
                    param=name,
                )


def _existing_directory(path: Path) -> Path:
    """`path` resolved, or NotABundle with a hint about what lies there."""
    remedy = "Give the directory that `ortolan export` wrote."
    try:
        path.stat()
        os.path.realpath(path).encode()
    except UnicodeEncodeError as error:
        raise NotABundle(
            f"{path} cannot be used.",
            why="Its name is not UTF-8, which ONNX Runtime needs.",
            remedy="Rename the directory, or those that it lies in.",
        ) from error
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f"{getattr(error, 'strerror', None) or error}."
        raise NotABundle(f"{path} does not exist or cannot be read.", why=why, remedy=remedy) from error
    if not path.is_dir():
        if path.name == MANIFEST_FILE:
            remedy = f"Give the directory that it lies in: {path.parent}"
        elif path.suffix in (".gguf", ".safetensors"):
            remedy = (
                f"It looks like a checkpoint: make a bundle of it with `ortolan export {path} --out DIRECTORY`."
            )
        raise NotABundle(f"{path} is not a directory.", why="A bundle is a directory.", remedy=remedy)
    if not (path / MANIFEST_FILE).is_file():
        if (path / "config.json").is_file():
            remedy = (
                f"It looks like a checkpoint: make a bundle of it with `ortolan export {path} --out DIRECTORY`."
            )
        raise NotABundle(f"{path} is not a bundle.", why=f"It has no {MANIFEST_FILE}.", remedy=remedy)
    return Path(os.path.realpath(path))


def _read_manifest(file: Path, shown: Path) -> Manifest:
    """The manifest of a file, checked for format, types and seal."""

    def damaged(why: str) -> BundleDamaged:
        return BundleDamaged(
            f"{MANIFEST_FILE} of {shown} is damaged.", why=why, remedy=_COPY_AGAIN, param=MANIFEST_FILE
        )

    try:
        if file.stat().st_size > _MAX_MANIFEST_BYTES:
            raise damaged(f"It is larger than {_MAX_MANIFEST_BYTES} bytes.")
        content = file.read_bytes()
        found = msgspec.json.decode(content, type=_Format).format
        if found > FORMAT:
            raise BundleTooNew(
                f"{shown} has bundle format {found}.",
                why=f"This version of Ortolan reads formats up to {FORMAT}.",
                remedy="Update Ortolan, or export the model with this version.",
                param=MANIFEST_FILE,
            )
        if found < 1:
            raise damaged(f"It says format {found}.")
        manifest = msgspec.json.decode(content, type=Manifest)
    except OSError as error:
        raise damaged(f"It cannot be read: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"{error}.") from error
    if not intact(content, manifest.seal):
        raise damaged("Its content does not match its own seal.")
    return manifest


def _check_size(file: Path, entry: FileEntry) -> None:
    try:
        size = file.stat().st_size if file.is_file() else -1
    except OSError as error:
        raise BundleDamaged(
            f"{entry.path} cannot be read.", why=str(error.strerror or error), remedy=_COPY_AGAIN, param=entry.path
        ) from error
    if size < 0:
        raise BundleDamaged(f"{entry.path} is missing.", remedy=_COPY_AGAIN, param=entry.path)
    if size != entry.size:
        raise BundleDamaged(
            f"{entry.path} has {size} bytes instead of {entry.size}.",
            why="It was cut short or changed.",
            remedy=_COPY_AGAIN,
            param=entry.path,
        )


def _leaves(relative: str) -> BundleDamaged:
    return BundleDamaged(
        f"The file name {relative!r} leaves the bundle.",
        why="Names must be relative, with forward slashes, and links must stay inside.",
        remedy="Do not use this bundle; get it from a source that you trust.",
        param=relative,
    )
