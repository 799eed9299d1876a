"""Times QuantMatMul beside ORT's MatMulNBits in one process: `python -m tests.ops.speed [--threads 2]`.

Each shape runs over many copies of its weights, one node a copy in one graph, so that they come from memory, or
from the last cache where 96 MB fit it. Rounds of both operators are interleaved.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from ops.layout import QuantForm
from ops.library import available_kernels, register
from ops.schema import DOMAIN, VERSION
from tests.ops.quant_case import QuantCase
from tests.ops.runner import Array

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (14336, 4096)]
BYTES = 96 << 20
MOST_COPIES = 160


def ours(case: QuantCase) -> tuple[list[Array], str, dict[str, int | str], str]:
    """Weights of a node, its operator, attributes and domain."""
    return [case.weights], "QuantMatMul", case.attributes, DOMAIN


def theirs(case: QuantCase) -> tuple[list[Array], str, dict[str, int | str], str]:
    """The same size as com.microsoft.MatMulNBits, symmetric, rounding activations to int8."""
    form, groups = case.form, -(-case.columns // case.form.group)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (case.rows, groups, form.group * form.bits // 8), dtype=np.uint8)
    scales = rng.uniform(-0.02, 0.02, (case.rows, groups)).astype(np.float32)
    attributes: dict[str, int | str] = {
        "K": case.columns, "N": case.rows, "bits": form.bits, "block_size": form.group, "accuracy_level": 4,
    }  # fmt: skip
    return [values, scales], "MatMulNBits", attributes, "com.microsoft"


def timed(
    weights: list[Array],
    op: str,
    attributes: dict[str, int | str],
    domain: str,
    x: Array,
    kernels: str,
    threads: int,
) -> tuple[Callable[[], float], int, int]:
    """A function that runs all copies once and returns seconds; their number, and bytes of one."""
    size = sum(array.nbytes for array in weights)
    copies = max(1, min(MOST_COPIES, -(-BYTES // size)))
    nodes, initialisers = [], []
    for copy in range(copies):
        names = [f"w{copy}.{part}" for part in range(len(weights))]
        for name, array in zip(names, weights, strict=True):
            # No two copies are equal, lest a runtime keep one for all.
            own = array.copy()
            own.reshape(-1).view(np.uint8)[0] = copy
            initialisers.append(numpy_helper.from_array(own, name))
        nodes.append(helper.make_node(op, ["x", *names], [f"y{copy}"], domain=domain, **attributes))
    graph = helper.make_graph(
        nodes,
        "speed",
        [helper.make_tensor_value_info("x", 1, list(x.shape))],
        [helper.make_tensor_value_info(f"y{copy}", 1, None) for copy in range(copies)],
        initialisers,
    )
    opsets = [
        helper.make_opsetid("", 21),
        helper.make_opsetid(DOMAIN, VERSION),
        helper.make_opsetid("com.microsoft", 1),
    ]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    register(options, kernels)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    for copy in range(copies):
        binding.bind_output(f"y{copy}")

    # One thread's own time does not count what other processes took from it.
    clock = time.thread_time if threads == 1 else time.perf_counter

    def once() -> float:
        begin = clock()
        session.run_with_iobinding(binding)
        return clock() - begin

    return once, copies, size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ops.speed", description="Time QuantMatMul.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,8,16,512")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--alone", action="store_true", help="leave MatMulNBits out")
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    arguments = parser.parse_args()
    forms = {
        "int4 minima": QuantForm(4, 32, minima=True),
        "int4": QuantForm(4, 32),
        "int8": QuantForm(8, 32),
    }
    print(f"kernels {arguments.kernels} of {', '.join(available_kernels())}, {arguments.threads} threads")
    for count in (int(text) for text in arguments.rows.split(",")):
        for rows, columns in SHAPES[: arguments.shapes]:
            for name, form in forms.items():
                case = QuantCase(form, rows, columns)
                x = np.random.default_rng(0).standard_normal((count, columns)).astype(np.float32)
                makers = [ours] if arguments.alone else [ours, theirs]
                runs = [timed(*make(case), x, arguments.kernels, arguments.threads) for make in makers]
                times: list[list[float]] = [[] for _ in runs]
                for _ in range(arguments.rounds):
                    for (once, copies, _size), taken in zip(runs, times, strict=True):
                        taken.append(once() / copies)
                best = [median(taken[1:]) for taken in times]
                size = runs[0][2]
                text = (
                    f"{count:4d} x {rows}x{columns} {name:12s} {best[0] * 1e6:9.1f} us "
                    f"{size / best[0] / 1e9:6.1f} GB/s {2 * count * rows * columns / best[0] / 1e9:7.0f} GOP/s"
                )
                if len(best) > 1:
                    text += f"   MatMulNBits {best[1] * 1e6:9.1f} us, {best[1] / best[0]:.2f} times ours"
                print(text, flush=True)


if __name__ == "__main__":
    main()
