"""Small helpers on a checkpoint's files: JSON that may be damaged, bytes at an offset, and their digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ops.errors import CheckpointError

FETCH_AGAIN = "Fetch or copy the file again; its size and hash should match those of its origin."


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises CheckpointError when it cannot be read or is not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON.", why=f"{error}.", remedy="Fetch or copy the file again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object.", remedy="Fetch or copy the file again.")
    return value


def fill(buffer: memoryview, descriptor: int, offset: int, path: Path) -> bool:
    """Read an open file from a byte offset on until `buffer` is full; False when the file ends before.

    Raises CheckpointError, naming `path`, when it cannot be read.
    """
    while buffer:
        try:
            count = os.preadv(descriptor, [buffer], offset)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
        if count == 0:
            return False
        buffer = buffer[count:]
        offset += count
    return True


def file_digest(path: Path) -> str:
    """Hex sha256 of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    """Hex digest over files: of the sha256 of each, in order. Several are hashed side by side."""
    total = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for digest in pool.map(file_digest, paths):
            total.update(bytes.fromhex(digest))
    return total.hexdigest()
