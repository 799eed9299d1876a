"""A .gguf file as a checkpoint: config, tokenizer and chat template from its metadata, tensors streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint import gguf_blocks as blocks
from export.checkpoint.base import Checkpoint
from export.checkpoint.files import digest_files
from export.checkpoint.gguf_config import config_of, family_of
from export.checkpoint.gguf_file import GGUFFile, GGUFTensorInfo
from export.checkpoint.gguf_tokenizer import tokenizer_of
from export.sources import Named
from export.tensors import QuantisedRows, RowSource
from ops.errors import CheckpointError, UnsupportedModel

ROPE_FACTORS = "rope_freqs.weight"


class GGUFCheckpoint(Checkpoint):
    """One file under Hugging Face's names. Raises CheckpointError when it is damaged or incomplete, and
    UnsupportedModel for an architecture or a tensor type that is not read."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.removesuffix(".gguf")
        self._file = GGUFFile(path)
        try:
            self._family = family_of(self._file.metadata, path.name)
            self._stored = self._known_tensors()
            shapes = {name: info.shape for name, info in self._file.tensors.items()}
            self.config = config_of(self._file.metadata, path.name, shapes, self._rope_factors())
        except CheckpointError:
            self.close()
            raise

    def _known_tensors(self) -> dict[str, GGUFTensorInfo]:
        """Tensors by Hugging Face name, their types checked."""
        stored = {}
        for info in self._file.tensors.values():
            name = self._family.hugging_face_name(info.name)
            if name is None:
                continue
            if info.type not in blocks.SUPPORTED:
                raise UnsupportedModel(
                    f"{self.path.name} stores {info.name} as {info.type.name}, which is not read.",
                    why=f"Read are {', '.join(kind.name for kind in blocks.SUPPORTED)}.",
                    remedy="Choose another quantisation of the model, as Q4_K_M, Q8_0 or F16.",
                )
            stored[name] = info
        return stored

    def _rope_factors(self) -> NDArray[np.float32] | None:
        info = self._file.tensors.get(ROPE_FACTORS)
        return None if info is None else GGUFTensor(self._file, info, ROPE_FACTORS).all()

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def tensor(self, name: str) -> RowSource:
        if name not in self._stored:
            raise CheckpointError(
                f"The checkpoint {self.path} has no tensor for {name!r}.",
                why="Its architecture asks for it.",
                remedy="Fetch the file again, or convert the model again.",
            )
        info = self._stored[name]
        source: RowSource = GGUFTensor(self._file, info, name)
        if self._family.layout is not None:
            try:
                source = self._family.layout(source, info.name, self.config)
            except (ValueError, TypeError) as error:
                raise CheckpointError(
                    f"The tensor {info.name} of {self.path} does not fit its metadata.",
                    why=f"It has {info.shape[0]} rows, which the heads do not divide.",
                    remedy="Fetch the file again, or convert the model again.",
                ) from error
        return Named(source, name)

    def write_tokenizer(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        metadata = self._file.metadata
        tokenizer, settings = tokenizer_of(metadata, self.path.name)
        tokenizer.save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", settings)
        ids = {name: self.config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(
            folder / "generation_config.json", {name: value for name, value in ids.items() if value is not None}
        )
        template = metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

    def sha256(self) -> str:
        return digest_files([self.path])

    def close(self) -> None:
        self._file.close()


class GGUFTensor(RowSource):
    """One stored tensor as it lies in the file."""

    def __init__(self, file: GGUFFile, info: GGUFTensorInfo, name: str) -> None:
        self._file = file
        self._info = info
        self.name = name
        self.key = f"tensor:{name}"
        self.shape = info.shape
        block = blocks.BLOCKS.get(info.type)
        self.quantised = None if block is None else block.form

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        if self.quantised is not None:
            return blocks.dequantise(self.quantised_rows(start, stop), self._info.type)
        values = blocks.decode_floats(self._file.rows(self._info, start, stop), self._info.type)
        return values.reshape(stop - start, *self.shape[1:])

    def quantised_rows(self, start: int, stop: int) -> QuantisedRows:
        return blocks.decode_blocks(self._file.rows(self._info, start, stop), self._info.type)

    def recipe(self) -> dict[str, Any]:
        return {"op": "tensor", "name": self.name}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
