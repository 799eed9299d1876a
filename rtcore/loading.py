"""From a bundle's path to an engine, with its weights hashed while the engine loads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ops.errors import ResourceError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.hashing import check_hashes

if TYPE_CHECKING:
    from rtcore.engine import Engine

SMALL_FILE = 16 * 2**20
"""Bytes up to which a file is hashed before anything reads it: graphs and tokenizers are parsed, weights not."""


def load_engine(path: str | Path, config: EngineConfig) -> Engine:
    """Open a bundle and load its engine; the same result as opening it with `config.check` first, but sooner.

    A full check hashes what the engine reads: not the weights of other precisions, which `rtcore.verify` does too.
    Raises the typed errors of Bundle.open and Engine.load. Damage beats whatever else goes wrong.
    """
    bundle = Bundle.open(path, check="sizes")
    with ThreadPoolExecutor(1) as pool:
        hashing: Future[None] | None = None
        if config.check == "full":
            used = bundle.manifest.used(config.precision, config.target)
            files = [(bundle.file(entry.path), entry) for entry in used]
            check_hashes([item for item in files if item[1].size <= SMALL_FILE])
            hashing = pool.submit(check_hashes, [item for item in files if item[1].size > SMALL_FILE])
        # Only now: importing takes as long as hashing hundreds of megabytes.
        from rtcore.engine import Engine

        try:
            engine = Engine.load(bundle, config)
        except Exception as error:
            if hashing is not None:
                hashing.result()
            if isinstance(error, MemoryError):
                raise _too_large(error) from error
            raise
        try:
            if hashing is not None:
                hashing.result()
        except BaseException:
            engine.close()
            raise
    return engine


def _too_large(error: MemoryError) -> ResourceError:
    return ResourceError(
        "There is not enough memory for the engine.",
        why=f"{error}." if str(error) else "",
        remedy="Free some, or choose a smaller cache (cache_bytes) and fewer sequences (max_sequences).",
        param="cache_bytes",
    )
