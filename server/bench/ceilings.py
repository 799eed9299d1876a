"""What this machine can do at most: read bandwidth and arithmetic, measured here and now.

Measured in a process of its own (``python -m server.bench.ceilings THREADS``), so that its arrays do not
count as the memory of what is benchmarked. A ceiling is the best of several runs of several methods.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ops.errors import ResourceError
from server.bench.onnx_bytes import product_model

READ_BYTES = 512 * 2**20
READ_RUNS = 5
PRODUCT_ROWS = 512
PRODUCT_SIZE = 2048
PRODUCT_RUNS = 8


class Ceilings(msgspec.Struct, frozen=True):
    """read_bytes_s: bytes a second that all threads read of a working set beyond the caches. fp32_ops_s and
    int8_ops_s: operations (a multiply-add is two) a second of a large matrix product in ONNX Runtime."""

    threads: int
    read_bytes_s: float
    fp32_ops_s: float
    int8_ops_s: float


def _best_seconds(work: Callable[[], object], runs: int) -> float:
    work()
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def read_bandwidth(threads: int, size: int = READ_BYTES) -> float:
    """Bytes a second of the fastest of three reductions over `size` bytes, split over `threads` threads."""
    block = np.ones(size // 8, np.int64)
    reductions: list[tuple[Callable[[Any], object], Any]] = [
        (np.max, np.int32),
        (np.bitwise_or.reduce, np.int64),
        (np.max, np.float32),
    ]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for reduce, dtype in reductions:
            parts = np.array_split(block.view(dtype), threads)

            def work(reduce: Callable[[Any], object] = reduce, parts: list[Any] = parts) -> object:
                return list(pool.map(reduce, parts))

            seconds.append(_best_seconds(work, READ_RUNS))
    return block.nbytes / min(seconds)


def product_rate(op_type: str, threads: int, size: int = PRODUCT_SIZE) -> float:
    """Operations a second of ONNX Runtime's MatMul (float32) or MatMulInteger (uint8 by int8)."""
    import onnxruntime

    generator = np.random.default_rng(0)
    weight: NDArray[Any]
    left: NDArray[Any]
    if op_type == "MatMul":
        weight = generator.standard_normal((size, size), np.float32)
        left = generator.standard_normal((PRODUCT_ROWS, size), np.float32)
        result = "float32"
    else:
        weight = generator.integers(-127, 127, (size, size), np.int8)
        left = generator.integers(0, 127, (PRODUCT_ROWS, size), np.uint8)
        result = "int32"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = product_model(op_type, PRODUCT_ROWS, weight, left.dtype.name, result)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return 2.0 * PRODUCT_ROWS * size * size / _best_seconds(lambda: session.run(None, {"x": left}), PRODUCT_RUNS)


def measure(threads: int) -> Ceilings:
    return Ceilings(
        threads=threads,
        read_bytes_s=read_bandwidth(threads),
        fp32_ops_s=product_rate("MatMul", threads),
        int8_ops_s=product_rate("MatMulInteger", threads),
    )


def measure_apart(threads: int) -> Ceilings:
    """Measure in a child process. Raises ResourceError when the child fails."""
    command = [sys.executable, "-P", "-m", "server.bench.ceilings", str(threads)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ResourceError(
            "This machine's ceilings could not be measured.",
            why=done.stderr.decode(errors="replace").strip().splitlines()[-1] if done.stderr else "",
            remedy=f"Free about {2 * READ_BYTES // 2**20} MiB of memory and run again.",
        )
    return msgspec.json.decode(done.stdout, type=Ceilings)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(int(sys.argv[1]))))
