"""The tuning table: tile sizes, warps and pipeline stages of each kernel, by architecture, rows and columns."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("tuning.json")
#: By a program's warps, how many registers a thread may have: two of 16 warps are to lie on a multiprocessor.
REGISTERS = {16: 64}


class Tiles(msgspec.Struct, frozen=True):
    """One choice: it serves up to `rows` rows and from `columns` columns on; constants are the tile sizes."""

    constants: dict[str, int] = {}
    warps: int = 4
    stages: int = 2
    rows: int = 2**31 - 1
    columns: int = 0


def serving(choices: list[Tiles], rows: tuple[int, int]) -> list[Tiles]:
    """Those of the choices that are ever taken for numbers of rows within the bounds; the first that fits is."""
    least, most = rows
    found = []
    for choice in choices:
        if choice.rows >= least:
            found.append(choice)
            if choice.rows >= most and not choice.columns:
                break
    return found


@cache
def table() -> dict[str, dict[str, list[Tiles]]]:
    """The choices of each kernel: for "default", and for the architectures that differ."""
    return msgspec.json.decode(TABLE.read_bytes(), type=dict[str, dict[str, list[Tiles]]])


def tiles(kernel: str, architecture: str) -> list[Tiles]:
    """The choices for a kernel, the narrowest first."""
    choices = table()[kernel]
    return choices.get(architecture, choices["default"])
