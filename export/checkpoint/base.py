"""The interface of a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from export.tensors import RowSource


class Checkpoint(ABC):
    """A model on disk: config as Hugging Face writes it, tensors by their Hugging Face parameter names.

    kind: huggingface, gguf or random. config: the content of config.json. sha256: over the weight files.
    Opening raises CheckpointError naming the file when something is missing or corrupt.
    """

    kind: Literal["huggingface", "gguf", "random"]
    name: str
    config: dict[str, Any]

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The Hugging Face names of all tensors."""

    @abstractmethod
    def tensor(self, name: str) -> RowSource:
        """One tensor, read lazily. Raises CheckpointError when it is absent."""

    @abstractmethod
    def write_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja, as far
        as the checkpoint has them."""

    @abstractmethod
    def sha256(self) -> str:
        """Hex digest over the weight files."""

    @abstractmethod
    def close(self) -> None:
        """Give back open files; tensors cannot be read afterwards. Safe to call twice."""
