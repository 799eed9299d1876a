"""`ortolan tune`: measures the choices of the tuning table on this machine's GPU and writes the best back.

Each choice runs as a captured graph over copies of the weights that no cache holds, as a decode step reads them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from export.kernels.compile import DEPENDENT
from export.kernels.tuning import TABLE, Tiles, table
from ops.errors import MissingExtra, WrongTarget
from ops.layout import QuantForm
from rtcore.command import Command
from rtcore.machine import available_cores

#: Widths and columns of a Llama's products: q|k|v, output, down, head; and of those of gate and up.
SHAPES = ((6144, 4096), (4096, 4096), (4096, 14336), (128256, 4096), (960, 576), (576, 1536))
GATED = ((14336, 4096), (1536, 576))
#: Weights are rotated over at least this many bytes.
ROTATED = 256 << 20
#: The tables of products with quantised weights, and the form that each is measured in.
FORMS = {
    "quant_tile": QuantForm(4, 128),
    "quant_tile_scaled": QuantForm(4, 32),
    "quant_tile_narrow": QuantForm(8, 16),
}
#: Columns from which on one row has other choices.
SINGLE = {0: (8192, 1024, 0), 1: (2048, 0)}


@dataclass(frozen=True)
class Sweep:
    """A kernel, the choices to try, and how one is launched for (rows, width, columns)."""

    kernel: str
    choices: tuple[Tiles, ...]
    launch: Callable[[Tiles, int, int, int], list[Callable[[], Any]]]


def measure(sweep: Sweep, shapes: list[tuple[int, int, int]]) -> list[tuple[Tiles, list[float]]]:
    """Microseconds of each choice for each shape; infinite where it does not run."""
    import torch
    import triton

    found: list[tuple[Tiles, list[float]]] = []
    for choice in sweep.choices:
        times = []
        for rows, width, columns in shapes:
            try:
                calls = sweep.launch(choice, rows, width, columns)

                def all_of(calls: list[Callable[[], Any]] = calls) -> None:
                    for call in calls:
                        call()

                milliseconds = triton.testing.do_bench_cudagraph(all_of, rep=10, return_mode="median")
                times.append(1e3 * float(milliseconds) / len(calls))
            except (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError):
                torch.cuda.synchronize()
                times.append(math.inf)
        found.append((choice, times))
    return found


def best(found: list[tuple[Tiles, list[float]]]) -> tuple[Tiles, list[float]]:
    """The choice with the least product of times, so that every shape counts alike, and its times."""
    return min(found, key=lambda one: sum(math.log(time) if time < math.inf else math.inf for time in one[1]))


def _weights(count: int, make: Callable[[], Any]) -> list[Any]:
    first = make()
    size = first.numel() * first.element_size()
    return [first] + [make() for _ in range(min(count, max(1, ROTATED // size)))]


def _scratch() -> tuple[Any, Any]:
    """Room for the parts of products that programs split, and their counters."""
    import torch

    return torch.empty(32 << 20, device="cuda"), torch.zeros(1 << 16, device="cuda", dtype=torch.int32)


def _grid(choice: Tiles, rows: int, width: int, steps: int) -> tuple[int, int, int]:
    """Programs of a product of few rows, as the launcher counts them (ops/src/cuda_linear.cc)."""
    sizes = choice.constants
    tiles = -(-width // sizes["BLOCK_N"])
    each = -(-steps // max(1, min(steps, sizes["PROGRAMS"] // tiles)))
    return tiles, -(-steps // each), -(-rows // sizes["BLOCK_M"])


def _options(choice: Tiles, activation: int) -> dict[str, int]:
    """What a launch gives a kernel besides its arguments; PROGRAMS is for the grid.

    Where the GPU can, a launch overlaps with the end of the one before, as in a step.
    """
    import torch

    early = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (DEPENDENT // 10, 0)
    options = {"HAS_BIAS": 0, "ACTIVATION": activation, "DEPENDENT": int(early), "num_warps": choice.warps}
    if early:
        options["launch_pdl"] = 1
    if choice.registers:
        options["maxnreg"] = choice.registers
    sizes = {name: value for name, value in choice.constants.items() if name != "PROGRAMS"}
    return options | sizes | {"num_stages": choice.stages}


def _linear(choice: Tiles, rows: int, width: int, columns: int, activation: int) -> list[Callable[[], Any]]:
    import torch

    from ops.triton.linear import linear_row_kernel, linear_tile_kernel

    def make() -> Any:
        return torch.randn(width * (1 + activation), columns, device="cuda", dtype=torch.bfloat16)

    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
    options = _options(choice, activation)
    if rows == 1:
        one: Any = linear_row_kernel
        programs = (-(-width // choice.constants["BLOCK_N"]),)
        return [
            lambda w=w: one[programs](x, w, x, y, width, columns, **options)  # type: ignore[misc]
            for w in _weights(16, make)
        ]
    parts, counters = _scratch()
    grid = _grid(choice, rows, width, -(-columns // choice.constants["BLOCK_K"]))
    kernel: Any = linear_tile_kernel
    return [
        lambda w=w: kernel[grid](  # type: ignore[misc]
            x, w, x, y, parts, counters, rows, width, columns, **options, STAGES=choice.stages
        )
        for w in _weights(16, make)
    ]


def _quant(
    choice: Tiles, rows: int, width: int, columns: int, activation: int, form: QuantForm
) -> list[Callable[[], Any]]:
    import torch

    from ops.cuda_layout import shape_of, steps_of
    from ops.triton.few_rows import PLAIN
    from ops.triton.quant_matmul import quant_tile_kernel

    shape = shape_of(form, width * (1 + activation), columns)

    def make() -> Any:
        # Codes and scales below 0.01: 0x20 is the upper half of such a float16.
        return torch.randint(0, 0x20, shape, device="cuda", dtype=torch.uint8)

    x = torch.randn(rows, columns, device="cuda", dtype=torch.float16)
    y = torch.empty(rows, width, device="cuda", dtype=torch.float16)
    parts, counters = _scratch()
    options = _options(choice, activation) | {"BITS": form.bits, "GROUP": form.group, "MINIMA": int(form.minima)}
    options |= {"PACKED": 1, "WHOLE": int(columns % 32 == 0)}
    options["NORM"] = PLAIN.value
    alone = (counters, 0, x, x, counters, x, 0.0)  # of norms around it, which it does not read
    grid = _grid(choice, rows, width, steps_of(form.bits, columns))
    sizes = (rows, width, columns, shape[1])
    kernel: Any = quant_tile_kernel
    return [
        lambda w=w: kernel[grid](  # type: ignore[misc]
            x,
            w.view(torch.int32),
            w.view(torch.float16),
            x,
            y,
            parts,
            counters,
            *alone,
            *sizes,
            **options,
            STAGES=choice.stages,
        )
        for w in _weights(64, make)
    ]


def _choices(
    rows: int, columns: int, warps: tuple[int, ...], stages: tuple[int, ...], **tiles: Any
) -> Iterator[Tiles]:
    """Every combination of tile sizes, warps and stages, for up to `rows` rows and from `columns` columns on."""
    for values in itertools.product(*tiles.values()):
        for count, depth in itertools.product(warps, stages):
            constants = dict(zip(tiles, values, strict=True))
            yield Tiles(constants=constants, warps=count, stages=depth, rows=rows, columns=columns)


def sweeps(quick: bool) -> list[tuple[Sweep, list[tuple[int, int, int]]]]:
    """What is tried, and for which shapes."""
    found: list[tuple[Sweep, list[tuple[int, int, int]]]] = []
    programs = (132, 264) if quick else (132, 200, 264, 330, 400)
    for activation, shapes, end in ((0, SHAPES, ""), (1, GATED, "_gated")):

        def add(
            kernel: str, launch: Any, choices: Iterator[Tiles], cases: list[Any], gated: int = activation
        ) -> None:
            found.append((Sweep(kernel, tuple(choices), partial(launch, activation=gated)), cases))

        for least, most in ((2048, 2**31), (0, 2048)):
            single = [(1, width, columns) for width, columns in shapes if least <= columns < most]
            row = _choices(2**31 - 1, least, (4, 8), (2,), BLOCK_N=(1, 2, 4, 8), BLOCK_K=(512, 1024, 2048))
            add(f"linear_row{end}", _linear, row, single)
        wide = [(width, columns) for width, columns in shapes if columns >= 2048]
        for name, form in FORMS.items():
            for choices, cases in _quantised(shapes, activation, programs, form.group >= 32):
                add(f"{name}{end}", partial(_quant, form=form), choices, cases)
        for rows in (16, 32, 64):
            cases = [(rows, width, columns) for width, columns in wide]
            sizes: dict[str, Any] = {"BLOCK_M": (min(rows, 64),), "BLOCK_N": (64, 128)}
            depths = (3, 4) if quick else (2, 3, 4, 6)
            dense = _choices(rows, 0, (4,), depths, **sizes, BLOCK_K=(64, 128), PROGRAMS=programs)
            add(f"linear_tile{end}", _linear, dense, cases)
    return found


def _quantised(
    shapes: tuple[tuple[int, int], ...], activation: int, programs: tuple[int, ...], few: bool
) -> Iterator[tuple[Iterator[Tiles], list[tuple[int, int, int]]]]:
    """Choices for products with quantised weights, in the order of the table. few: groups of 32 and wider."""
    most = 2**31
    for least in SINGLE[activation]:
        cases = [(1, width, columns) for width, columns in shapes if least <= columns < most]
        yield _single(least, activation), cases
        most = least
    wide = [(width, columns) for width, columns in shapes if columns >= 2048]
    ahead = {"DEPTH": (1, 2), "SPLIT": (0,), "PROGRAMS": (*programs, 528)}
    for rows in (8, 16, 32, 64, 128):
        sizes: dict[str, Any] = {"BLOCK_M": (min(rows, 64),)}
        choices: Iterator[Tiles] = iter(())
        if rows > 8:
            staged = {"BLOCK_N": (64, 128), "DEPTH": (0,), "SPLIT": (0,), "PROGRAMS": programs}
            choices = _choices(rows, 0, (4, 8), (2, 3), **sizes, **staged)
        if few and rows <= 16:
            choices = itertools.chain(choices, _choices(rows, 0, (4,), (1,), **sizes, BLOCK_N=(64,), **ahead))
        if few or rows > 8:
            yield choices, [(rows, width, columns) for width, columns in wide]


def _single(least: int, activation: int) -> Iterator[Tiles]:
    """Choices for one row: 16 or 32 rows of W a program, whose columns up to 16 warps share."""
    for height, split, depth in itertools.product((16, 32), (1, 2, 4, 8, 16), (1, 2)):
        warps = height // 16 * split * (1 + activation)
        if 4 <= warps <= 16:
            sizes = {"BLOCK_M": 1, "BLOCK_N": height, "DEPTH": depth, "SPLIT": split, "PROGRAMS": 1}
            # Two programs of 16 warps are to lie on a multiprocessor.
            registers = 64 if warps == 16 else 0
            yield Tiles(sizes, warps, stages=1, rows=1, columns=least, registers=registers)


def compile_ahead(chosen: list[tuple[Sweep, list[tuple[int, int, int]]]]) -> None:
    """Compile all choices side by side, in processes: Triton keeps them on disk, and measuring finds them there."""
    tasks = {
        (sweep.kernel, str(_options(choice, 0))): (sweep.launch, choice, shapes[0])
        for sweep, shapes in chosen
        for choice in sweep.choices
    }
    with multiprocessing.get_context("spawn").Pool(min(12, available_cores())) as pool:
        pool.map(_launch_once, list(tasks.values()), chunksize=1)


def _launch_once(task: tuple[Callable[..., list[Callable[[], Any]]], Tiles, tuple[int, int, int]]) -> None:
    import torch
    import triton

    launch, choice, (rows, _, columns) = task
    try:
        launch(choice, rows, 128, columns)[0]()
        torch.cuda.synchronize()
    except (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError):
        return  # measured as one that does not run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ortolan tune``."""
    parser.add_argument("--kernels", help="kernels to tune, separated by commas (default: all that are swept)")
    parser.add_argument("--quick", action="store_true", help="try fewer choices")
    parser.add_argument("--write", action="store_true", help=f"write the best into {TABLE.name}, else only print")


def run(arguments: argparse.Namespace) -> int:
    """Measure and say what is best. Raises MissingExtra or WrongTarget where there is nothing to measure with."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("`ortolan tune` needs torch.", remedy="pip install 'ortolan[export]'") from error
    if not torch.cuda.is_available():
        raise WrongTarget("There is no GPU to tune for.", remedy="Run this on a machine with one.")
    major, minor = torch.cuda.get_device_capability()
    architecture = f"sm_{major}{minor}"
    wanted = set(arguments.kernels.split(",")) if arguments.kernels else None
    chosen: dict[str, list[Tiles]] = {}
    swept = [
        (sweep, shapes) for sweep, shapes in sweeps(arguments.quick) if wanted is None or sweep.kernel in wanted
    ]
    compile_ahead(swept)
    for sweep, shapes in swept:
        found = measure(sweep, shapes)
        winner, measured = best(found)
        chosen.setdefault(sweep.kernel, []).append(winner)
        times = ", ".join(f"{n}x{k}: {time:.1f} us" for (_, n, k), time in zip(shapes, measured, strict=True))
        print(f"{sweep.kernel} {shapes[0][0]} rows: {winner.constants} {winner.warps} warps: {times}", flush=True)
    if arguments.write:
        known = dict(table())
        for kernel, choices in chosen.items():
            known[kernel] = {**known[kernel], architecture: choices}
        TABLE.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
        print(f"wrote {TABLE} for {architecture}")
    return 0


TUNE = Command(
    name="tune",
    help="choose the GPU kernels' tile sizes by measuring them",
    description="Measure the choices of tile sizes on this machine's GPU. Close other programs that use it.",
    configure=configure,
    run=run,
)
