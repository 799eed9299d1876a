"""One variant of a kernel: what it is compiled for, before any architecture is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

#: Triton's names of the types that activations have.
TRITON_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
#: No bounds: what a kernel is launched for where nothing else is said.
ANY_ROWS = (1, 2**31 - 1)


@dataclass(frozen=True)
class Variant:
    """key: as the launcher names it. kernel: its name in the tuning table. function: the Triton function.

    types: of each argument that is none of the constants, in order: *fp16, i32, fp32 ... aligned: arguments that
    are multiples of 16; pointers always are. constants: what does not depend on the architecture; the tuning table
    adds the rest. rows: the fewest and the most that it is launched for, for the choice of tiles.
    """

    key: str
    kernel: str
    function: Any
    types: Mapping[str, str]
    aligned: frozenset[str]
    constants: Mapping[str, int]
    rows: tuple[int, int] = ANY_ROWS

    def __reduce__(self) -> tuple[Callable[..., Variant], tuple[Any, ...]]:
        """For another process: the function by its name, since Triton's own cannot be pickled."""
        names = self.function.__module__, self.function.__name__
        rest = self.key, self.kernel, *names, dict(self.types), self.aligned, dict(self.constants), self.rows
        return _named, rest

    def joined(self, other: Variant) -> Variant:
        """One that serves what either serves: what only one knows to be aligned is not, and tiles hold both."""
        constants = dict(self.constants)
        if "BLOCK" in constants:
            constants["BLOCK"] = max(constants["BLOCK"], other.constants["BLOCK"])
        if "WHOLE" in constants:
            constants["WHOLE"] = min(constants["WHOLE"], other.constants["WHOLE"])
        rows = min(self.rows[0], other.rows[0]), max(self.rows[1], other.rows[1])
        return replace(self, aligned=self.aligned & other.aligned, constants=constants, rows=rows)

    def letters(self) -> str:
        """The arguments as kernels.json writes them."""
        letters = ""
        for name, kind in self.types.items():
            letter = "p" if kind.startswith("*") else "f" if kind == "fp32" else "i"
            letters += letter.upper() if name in self.aligned else letter
        return letters


def _named(
    key: str,
    kernel: str,
    module: str,
    name: str,
    types: Mapping[str, str],
    aligned: frozenset[str],
    constants: Mapping[str, int],
    rows: tuple[int, int],
) -> Variant:
    """A variant whose function is `name` of `module`."""
    return Variant(key, kernel, getattr(import_module(module), name), types, aligned, constants, rows)
