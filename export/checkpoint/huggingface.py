"""A Hugging Face folder: config.json, one or several safetensors files, tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from export.checkpoint.base import Checkpoint
from export.checkpoint.files import digest_files, read_json
from export.checkpoint.shards import Shard, ShardTensor
from export.tensors import RowSource
from ops.errors import CheckpointError, UnsupportedModel

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja", "chat_template.json")


class HuggingFaceCheckpoint(Checkpoint):
    """Weights of a folder, found through its index; raises CheckpointError for anything missing or corrupt."""

    kind = "huggingface"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self.config = read_config(folder)
        refuse_quantised(self.config)
        self._shards: dict[str, Shard] = {}
        try:
            self._where = self._locate()
        except CheckpointError:
            self.close()
            raise

    def _locate(self) -> dict[str, str]:
        """The file of every tensor; opens and checks all shards."""
        index = self.folder / INDEX_FILE
        if index.exists():
            return self._from_index(read_json(index))
        single = self.folder / SINGLE_FILE
        if not single.exists():
            raise self._no_weights()
        self._shards[SINGLE_FILE] = Shard(single)
        return dict.fromkeys(self._shards[SINGLE_FILE].entries, SINGLE_FILE)

    def _from_index(self, index: dict[str, Any]) -> dict[str, str]:
        where = index.get("weight_map")
        if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
            raise CheckpointError(
                f"{self.folder / INDEX_FILE} names no weights.",
                why="It needs an object weight_map from tensor names to file names.",
                remedy="Fetch the index file again.",
            )
        for file in sorted(set(where.values())):
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or "\\" in file or path.suffix != ".safetensors":
                raise CheckpointError(
                    f"{INDEX_FILE} names the file {file!r}, which is not a safetensors file of this folder.",
                    why="An index may only name files beside it.",
                    remedy="Do not use this checkpoint unless you know where it comes from.",
                )
            self._shards[file] = Shard(self.folder / file)
        for name, file in where.items():
            if name not in self._shards[file].entries:
                raise CheckpointError(
                    f"The tensor {name!r} is missing from {file}.",
                    why=f"{INDEX_FILE} says that it lies there.",
                    remedy="Fetch this shard and the index again; they belong to different versions.",
                )
        return where

    def _no_weights(self) -> CheckpointError:
        others = sorted(path.name for path in self.folder.glob("*.bin")) + sorted(
            path.name for path in self.folder.glob("*.safetensors")
        )
        found = f"It holds {', '.join(others[:4])}." if others else "It holds no weight file."
        return CheckpointError(
            f"{self.folder} has neither {SINGLE_FILE} nor {INDEX_FILE}.",
            why=found,
            remedy="Convert the weights to safetensors, or pass --weights random:SEED to export without any.",
        )

    def names(self) -> Iterable[str]:
        return self._where.keys()

    def tensor(self, name: str) -> RowSource:
        if name not in self._where:
            raise CheckpointError(
                f"The checkpoint {self.folder} has no tensor {name!r}.",
                why="Its configuration asks for it.",
                remedy="Check that config.json and the weights belong together, and that no shard is missing.",
            )
        return ShardTensor(self._shards[self._where[name]], name)

    def write_tokenizer(self, folder: Path) -> None:
        copy_tokenizer(self.folder, folder)

    def sha256(self) -> str:
        return digest_files(self.folder / file for file in sorted(self._shards))

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder. Raises CheckpointError when it is missing, not JSON, or names no model_type."""
    path = folder / CONFIG_FILE
    if not path.exists():
        raise CheckpointError(
            f"{folder} has no {CONFIG_FILE}.",
            why="A checkpoint is a folder as Hugging Face writes it, or one .gguf file.",
            remedy="Name the folder that holds config.json and the safetensors files.",
        )
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} names no model_type.", remedy="Fetch config.json again.")
    return config


def refuse_quantised(config: dict[str, Any]) -> None:
    """Refuse checkpoints whose weights are packed in a foreign form, by the name of the form."""
    quantisation = config.get("quantization_config")
    if not quantisation:
        return
    method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else "unknown"
    raise UnsupportedModel(
        f"The checkpoint is quantised with {str(method).upper()}, which is not read.",
        why="Its config.json has a quantization_config.",
        remedy="Export the unquantised checkpoint and choose --precision int8 or int4, or use a GGUF file.",
    )


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy what the checkpoint has of a tokenizer; a tokenizer without tokenizer.json is converted first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    if (source / "tokenizer.json").exists():
        read_json(source / "tokenizer.json")
        shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    elif any((source / name).exists() for name in ("tokenizer.model", "vocab.json", "tekken.json", "spiece.model")):
        convert_tokenizer(source, folder)


def convert_tokenizer(source: Path, folder: Path) -> None:
    """Write tokenizer.json from an older form (sentencepiece, vocab and merges) through transformers."""
    from optimum.utils.save_utils import maybe_load_preprocessors

    for preprocessor in maybe_load_preprocessors(source):
        backend = getattr(preprocessor, "backend_tokenizer", None)
        if backend is not None:
            backend.save(str(folder / "tokenizer.json"))
            return
    raise CheckpointError(
        f"The tokenizer of {source} cannot be converted to tokenizer.json.",
        why="It has only an older form that transformers gives no fast tokenizer for.",
        remedy="Add a tokenizer.json to the checkpoint's folder.",
    )
