"""What is compared: the entries of a peers file, and those of the bundle itself."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ops.errors import ConfigError
from server.bench.compare.registry import OURS, driver


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine with one model. python: of the engine's environment. precision: a word for what its weights are
    kept in; entries of one word are also compared among themselves. options: what the engine's driver takes.
    environment: variables for its process. rounds: the most that it takes part in, all if None."""

    name: str
    engine: str
    model: str
    python: str = sys.executable
    precision: str = ""
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}
    rounds: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def ours(self) -> bool:
        return self.engine == OURS


class _PeersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: list[Entry] = []


def read_peers(path: Path) -> list[Entry]:
    """The entries of a peers file; relative paths in it are relative to its folder.

    Raises ConfigError for a file that cannot be read, unknown keys, unknown engines, and names given twice.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
        entries = msgspec.convert(content, _PeersFile).peer
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"The peers file {path} cannot be used.",
            why=f"{error}.",
            remedy="It holds tables [[peer]] with name, engine, model and python.",
            param="peers",
        ) from error
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path} names {name!r} twice.", param="peers")
    for entry in entries:
        driver(entry.engine)
    return [
        msgspec.structs.replace(entry, model=str(path.parent / entry.model), python=str(path.parent / entry.python))
        for entry in entries
    ]


def own_entries(bundle: Path, precisions: list[str]) -> list[Entry]:
    """The bundle itself in each of `precisions`."""
    return [
        Entry(
            name=f"ortolan {precision}",
            engine=OURS,
            model=str(bundle.absolute()),
            precision=precision,
            options={"precision": precision},
        )
        for precision in precisions
    ]
