"""Compiles variants with Triton, for any architecture, without a GPU; Triton keeps a cache of what it compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from export.kernels.architecture import Architecture
from export.kernels.tuning import REGISTERS, Tiles, serving, tiles
from export.kernels.variant import Variant
from ops.errors import KernelError

#: From this compute capability on a kernel may start before the one ahead of it has ended.
DEPENDENT = 90


@dataclass(frozen=True)
class Compiled:
    """A kernel's binary and what launching it needs."""

    variant: Variant
    tiles: Tiles
    binary: bytes
    entry: str
    shared: int
    constants: dict[str, int]


def compile_variant(variant: Variant, architecture: Architecture) -> list[Compiled]:
    """The binaries of a variant: one for each of the tuning table's choices for its rows.

    Raises KernelError when Triton cannot compile it, or it needs more shared memory than the architecture has.
    """
    choices = serving(tiles(variant.kernel, architecture.name), variant.rows)
    return [compile_choice(variant, choice, architecture) for choice in choices]


def compile_choice(variant: Variant, choice: Tiles, architecture: Architecture) -> Compiled:
    """The choice with as many pipeline stages as shared memory holds."""
    for stages in range(choice.stages, 0, -1):
        compiled = _compile(variant, structs.replace(choice, stages=stages), architecture)
        if compiled.shared <= architecture.shared_memory:
            return compiled
    raise KernelError(
        f"The kernel {variant.key} does not fit {architecture.name}.",
        why=f"A program has {architecture.shared_memory:,} bytes of shared memory; it needs {compiled.shared:,}.",
        remedy="Choose smaller tiles in export/kernels/tuning.json.",
    )


def _compile(variant: Variant, choice: Tiles, architecture: Architecture) -> Compiled:
    import triton
    from triton.compiler import ASTSource

    capability = architecture.capability or 0
    constants = {**choice.constants, **variant.constants, "STAGES": choice.stages}
    constants["DEPENDENT"] = int(capability >= DEPENDENT)
    if architecture.capability is None and "PACKED" in constants:
        constants["PACKED"] = 0  # written in PTX
    names = variant.function.arg_names
    wanted = {name: constants[name] for name in names if name not in variant.types}
    signature = {name: variant.types.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned}
    source = ASTSource(
        variant.function,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in wanted.items()},
        attrs=attributes,
    )
    bounds = {"maxnreg": REGISTERS[choice.warps]} if choice.warps in REGISTERS else {}
    try:
        compiled: Any = triton.compile(
            source,
            target=architecture.gpu_target(),
            options={"num_warps": choice.warps, "num_stages": choice.stages} | bounds,
        )
    except Exception as error:
        # Triton's compiler raises classes of many kinds, without a root of their own.
        raise KernelError(
            f"Triton cannot compile the kernel {variant.key} for {architecture.name}.",
            why=f"{type(error).__name__}: {error}",
            remedy="Leave the architecture out of --target, or report it.",
        ) from error
    if constants.get("PACKED"):
        if constants.get("SPLIT"):
            check_spans(variant.key, compiled.asm["ttgir"])
        elif constants.get("DEPTH"):
            check_pairs(variant.key, compiled.asm["ttgir"])
    metadata = compiled.metadata
    # What AMD's back end compiles has no such memory, and no word for it.
    if getattr(metadata, "global_scratch_size", 0):
        raise KernelError(
            f"The kernel {variant.key} asks for scratch memory on {architecture.name}.",
            why="The launcher gives kernels none.",
            remedy="Report it.",
        )
    # What the launcher alone reads comes along: the number of programs that fill a GPU.
    kept = {**choice.constants, **wanted}
    return Compiled(variant, choice, compiled.asm[architecture.binary], metadata.name, int(metadata.shared), kept)


#: Inline assembly for two elements at a time, and the layout of its result.
_PACKED = re.compile(r"packed_element = 2 .*->\s*tensor<[^,>]*, (?:#ttg\.(dot_op<.*?kWidth = \d+)|#(\w+)>)")


def check_pairs(key: str, text: str) -> None:
    """Raise KernelError where the assembly that makes two codes of a word may be given two words.

    text: the compiler's intermediate form of the kernel, which says how elements lie in registers. The compiler is
    free to choose another layout, and the codes would silently be wrong (`ops.triton.quant_few`).
    """
    layouts = [operand or name for operand, name in _PACKED.findall(text)]
    _refuse_strange(
        key,
        layouts,
        [
            layout
            for layout in layouts
            if not layout.endswith("kWidth = 2") and f"#{layout} = #ttg.linear<{{register = [[0, 1]," not in text
        ],
    )


#: Inline assembly for four elements at a time, and the layout of its result.
_SPANS = re.compile(r"packed_element = 4 .*->\s*tensor<[^,>]*, #(\w+)>")


def check_spans(key: str, text: str) -> None:
    """Raise KernelError where the assembly that multiplies spans may be given elements of other threads.

    text: as for `check_pairs`. Each thread of a warp must have four neighbours (`ops.triton.span_products`).
    """
    layouts = _SPANS.findall(text)
    expected = "#ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32],"
    _refuse_strange(key, layouts, [layout for layout in layouts if f"#{layout} = {expected}" not in text])


def _refuse_strange(key: str, layouts: list[str], strange: list[str]) -> None:
    if strange or not layouts:
        raise KernelError(
            f"The kernel {key} was compiled with its codes in an unknown order.",
            why=f"Triton chose the layout {strange[0]}." if strange else "Triton's text says nothing of it.",
            remedy="Export with the version of Triton that pyproject.toml names.",
        )
