"""sha256 of a bundle's files, in parallel: hashlib gives up the interpreter lock while it hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ops.errors import BundleDamaged
from rtcore.machine import available_cores
from rtcore.manifest import FileEntry


def check_hashes(files: Sequence[tuple[Path, FileEntry]]) -> None:
    """Hash all files and raise BundleDamaged for the first, in the order given, whose sha256 differs."""
    largest_first = sorted(files, key=lambda item: -item[1].size)
    with ThreadPoolExecutor(available_cores()) as pool:
        found = dict(zip((entry.path for _, entry in largest_first), pool.map(_digest, largest_first), strict=True))
    for _, entry in files:
        if found[entry.path] != entry.sha256:
            raise BundleDamaged(
                f"{entry.path} is damaged.",
                why=f"Its sha256 is {found[entry.path]} instead of {entry.sha256}.",
                remedy="Copy the bundle again or export it anew.",
                param=entry.path,
            )


def _digest(item: tuple[Path, FileEntry]) -> str:
    path, entry = item
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise BundleDamaged(
            f"{entry.path} cannot be read.",
            why=str(error.strerror or error),
            remedy="Check its permissions and the disk.",
            param=entry.path,
        ) from error
