"""Compiles what the graphs of a bundle need and writes it, one set of kernels an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from export.kernels.architecture import Architecture
from export.kernels.variant import Variant
from export.progress import Reporter
from export.targets import Target

if TYPE_CHECKING:
    from export.lowering import LoweredModel
    from export.writer import BundleWriter


def write_kernels(writer: BundleWriter, models: Sequence[tuple[LoweredModel, Target]], report: Reporter) -> None:
    """Kernels for all graphs together; graphs for the CPU need none.

    Raises KernelError when one cannot be compiled.
    """
    variants: dict[str, Variant] = {}
    architectures: dict[str, Architecture] = {}
    for model, target in models:
        if target.architectures:
            from export.kernels.plan import variants_of

            for variant in variants_of(model.step.graph, model.float_type):
                known = variants.get(variant.key)
                variants[variant.key] = variant if known is None else known.joined(variant)
            architectures |= {architecture.name: architecture for architecture in target.architectures}
    if not variants:
        return
    from export.kernels.pack import pack
    from export.kernels.side_by_side import compile_all

    tasks = [(variant, architecture) for architecture in architectures.values() for variant in variants.values()]
    compiled = compile_all(tasks)
    for architecture in architectures.values():
        report.stage(f"Compiling {len(variants)} kernels for {architecture.name}")
        for path, content in pack(architecture, islice(compiled, len(variants))):
            writer.write(path, content)
