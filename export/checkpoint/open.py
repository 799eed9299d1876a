"""Opening whatever the user names: a folder, a .gguf file, or something that is neither."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from export.checkpoint.base import Checkpoint
from export.checkpoint.huggingface import CONFIG_FILE, HuggingFaceCheckpoint, read_config
from export.checkpoint.random import RandomCheckpoint
from ops.errors import CheckpointError, ConfigError

RANDOM = "random:"


def open_checkpoint(source: Path) -> Checkpoint:
    """The checkpoint of a path. Raises CheckpointError when there is none, or when it is damaged."""
    if is_gguf(source):
        from export.checkpoint.gguf import GGUFCheckpoint

        return GGUFCheckpoint(source)
    return HuggingFaceCheckpoint(_folder(source))


def open_config(source: Path) -> tuple[dict[str, Any], Path | None]:
    """Config of a source whose weights are not needed, and the folder that may hold its tokenizer."""
    if is_gguf(source):
        with closing(open_checkpoint(source)) as checkpoint:
            return checkpoint.config, None
    folder = _folder(source)
    return read_config(folder), folder


def open_random(
    weights: str, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], folder: Path | None
) -> RandomCheckpoint:
    return RandomCheckpoint(config, shapes, seed_of(weights), folder)


def seed_of(weights: str) -> int:
    """The seed of ``random:SEED``. Raises ConfigError for anything else."""
    text = weights.removeprefix(RANDOM)
    if not weights.startswith(RANDOM) or not text.isascii() or not text.isdigit():
        raise ConfigError(
            f"{weights!r} names no random weights.",
            remedy="Write random: and a whole number, as in --weights random:7.",
            param="--weights",
        )
    return int(text)


def is_gguf(source: Path) -> bool:
    """Whether a path is a file that says or looks like GGUF."""
    if not source.is_file():
        return False
    with source.open("rb") as file:
        return source.suffix == ".gguf" or file.read(4) == b"GGUF"


def _folder(source: Path) -> Path:
    remedy = "Name a folder as Hugging Face writes it, or one .gguf file."
    if not source.exists():
        if len(source.parts) == 2 and not source.is_absolute():
            remedy = (
                f"If it is a model of the Hugging Face hub, fetch it first: hf download {source} --local-dir DIR"
            )
        raise CheckpointError(f"{source} does not exist.", remedy=remedy, param="SOURCE")
    if not source.is_dir():
        if source.suffix == ".safetensors":
            remedy = f"Name the folder that it lies in: {source.parent}"
        raise CheckpointError(f"{source} is neither a folder nor a GGUF file.", remedy=remedy, param="SOURCE")
    if not (source / CONFIG_FILE).exists():
        models = sorted(path.name for path in source.glob("*.gguf"))
        if models:
            remedy = f"Name the file itself: {source / models[0]}"
        raise CheckpointError(f"{source} has no {CONFIG_FILE}.", remedy=remedy, param="SOURCE")
    return source
