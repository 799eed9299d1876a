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
from typing import Any

import msgspec

from export.kernels.tuning import TABLE, Tiles, table
from ops.errors import MissingExtra, WrongTarget
from rtcore.command import Command
from rtcore.machine import available_cores

#: Widths and columns of a Llama's products: q|k|v, output, gate|up, down, head.
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (960, 576), (576, 1536))
#: Weights are rotated over at least this many bytes.
ROTATED = 256 << 20
GROUP = 128


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


def _linear(choice: Tiles, rows: int, width: int, columns: int) -> list[Callable[[], Any]]:
    import torch

    from ops.triton.linear import linear_row_kernel, linear_tile_kernel

    def make() -> Any:
        return torch.randn(width, columns, device="cuda", dtype=torch.bfloat16)

    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
    options = {"HAS_BIAS": 0, "ACTIVATION": 0, "num_warps": choice.warps, "num_stages": choice.stages}
    grid = (-(-width // choice.constants["BLOCK_N"]),)
    kernel: Any = linear_row_kernel if rows == 1 else linear_tile_kernel
    sizes = (width, columns) if rows == 1 else (rows, width, columns)
    return [
        lambda w=w: kernel[grid](x, w, x, y, *sizes, **options, **choice.constants)  # type: ignore[misc]
        for w in _weights(16, make)
    ]


def _quant(choice: Tiles, rows: int, width: int, columns: int) -> list[Callable[[], Any]]:
    import torch

    from ops.cuda_layout import row_bytes
    from ops.layout import QuantForm
    from ops.triton.quant_matmul import quant_row_kernel, quant_tile_kernel

    size = row_bytes(QuantForm(4, GROUP), columns)

    def make() -> Any:
        # Codes and scales below 0.01: 0x20 is the upper half of such a float16.
        return torch.randint(0, 0x20, (width, size), device="cuda", dtype=torch.uint8)

    x = torch.randn(rows, columns, device="cuda", dtype=torch.float16)
    y = torch.empty(rows, width, device="cuda", dtype=torch.float16)
    options = {"BITS": 4, "GROUP": GROUP, "MINIMA": 0, "HAS_BIAS": 0, "ACTIVATION": 0}
    options |= {"num_warps": choice.warps, "num_stages": choice.stages}
    if rows == 1:
        options["PACKED"] = 1
    grid: tuple[int, ...] = (-(-width // choice.constants["BLOCK_N"]),)
    if rows > 1:
        grid = (*grid, -(-rows // choice.constants["BLOCK_M"]))
    kernel: Any = quant_row_kernel if rows == 1 else quant_tile_kernel
    sizes: tuple[int, ...] = (width, columns, -(-columns // GROUP), size)
    if rows > 1:
        sizes = (rows, *sizes)
    return [
        lambda w=w: kernel[grid](  # type: ignore[misc]
            x, w.view(torch.int32), w.view(torch.float16), x, y, *sizes, **options, **choice.constants
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
    for least, most in ((8192, 2**31), (2048, 8192), (0, 2048)):
        shapes = [(1, width, columns) for width, columns in SHAPES if least <= columns < most]
        k_sizes = (512, 1024) if least == 0 else (1024, 2048, 4096)
        row = tuple(_choices(2**31 - 1, least, (4, 8), (2,), BLOCK_N=(1, 2, 4), BLOCK_K=k_sizes))
        found.append((Sweep("linear_row", row, _linear), shapes))
        words = tuple(_choices(2**31 - 1, least, (2, 4, 8), (2,), BLOCK_N=(4, 8, 16), BLOCK_W=(128, 256)))
        found.append((Sweep("quant_row", words, _quant), shapes))
    depths = (3, 4) if quick else (2, 3, 4, 5)
    for rows, most in ((16, 16), (32, 32), (64, 64), (128, 512)):
        shapes = [(rows, width, columns) for width, columns in SHAPES[: 4 if quick else 5]]
        if rows <= 64:
            tiles = _choices(most, 0, (4,), depths, BLOCK_M=(rows,), BLOCK_N=(16, 32, 64), BLOCK_K=(64, 128, 256))
            found.append((Sweep("linear_tile", tuple(tiles), _linear), shapes))
        heights = (64, 128) if rows > 64 else (rows,)
        packed = _choices(most, 0, (4, 8), depths, BLOCK_M=heights, BLOCK_N=(32, 64, 128), BLOCK_W=(16,))
        found.append((Sweep("quant_tile", tuple(packed), _quant), shapes))
    return found


def compile_ahead(chosen: list[tuple[Sweep, list[tuple[int, int, int]]]]) -> None:
    """Compile all choices side by side, in processes: Triton keeps them on disk, and measuring finds them there."""
    tasks = {
        (sweep.kernel, tuple(choice.constants.items()), choice.warps, choice.stages): (
            sweep.launch,
            choice,
            shapes[0],
        )
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
