"""Variants compiled side by side in processes: Triton keeps the interpreter's lock for most of its work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from export.kernels.architecture import Architecture
from export.kernels.compile import Compiled, compile_variant
from export.kernels.variant import Variant
from ops.errors import KernelError
from rtcore.machine import available_cores

#: Variants for which one more process is worth its start, some two seconds.
_WORTH = 6
_MOST_PROCESSES = 16


def compile_all(tasks: Sequence[tuple[Variant, Architecture]]) -> Iterator[list[Compiled]]:
    """The binaries of each variant, in order; as many are compiled at once as this process may use cores.

    Raises KernelError when one cannot be compiled, or a process ends by itself.
    """
    processes = min(available_cores(), _MOST_PROCESSES, len(tasks) // _WORTH)
    if processes < 2:
        yield from (compile_variant(*task) for task in tasks)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        for future in [pool.submit(compile_variant, *task) for task in tasks]:
            yield future.result()
    except BrokenProcessPool as error:
        raise KernelError(
            "A process that compiled kernels ended by itself.",
            why=str(error),
            remedy="See whether memory ran out, and export again: what is compiled is kept.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
