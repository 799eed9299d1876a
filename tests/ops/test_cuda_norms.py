"""Quantised products before and behind a norm, as the launcher runs them: over a driver that only pretends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.test_cuda import driver, run

__all__ = ["driver"]

START = """
from tests.ops.fake_runtime import FakeRuntime

device = CudaDevice()
TILE = "PPPPPPPPiPPPPfiIII"  # as export.kernels.plan has it
FORM = dict(rows=128, columns=64, bits=4, group=64, layout="cuda-fragments")
WEIGHTS = (2, 8704)

def add(name, key, arguments, rows=1 << 30, **constants):
    constants = {"BLOCK": 128, "BLOCK_M": 16, "BLOCK_N": 64, "PROGRAMS": 1} | constants
    device.add_kernel(kernel(key, arguments, constants, entry=name, rows=rows))

add("plain", "quant_tile/float16/4.64/same/plain/none", TILE)
add("norm", "add_rms_norm/float16", "PPPPPif")
add("dequantise", "dequantise/float16/4.64", "PPPiii")

def refused(words, *call):
    try:
        runtime.run(*call)
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

def before(rows, **changed):
    shapes = dict(x=(rows, 64), weights=WEIGHTS, residual=(rows, 128), gain=(128,), unit=(1,)) | changed
    return "QuantMatMulAddRMSNorm", FORM | {"epsilon": 1e-5}, list(shapes.values())

def behind(rows, squares):
    return "QuantMatMul", FORM, [(rows, 64), WEIGHTS, None, None, None, squares]
"""
ADDED = 'add("added", "quant_tile/float16/4.64/added/plain/none", TILE, rows=32)\n'
RUNTIME = 'runtime = FakeRuntime(device.number, "float16")\n'


def test_a_norm_is_left_to_products_of_few_rows(driver: Path) -> None:
    launches = run(
        driver,
        START + ADDED + RUNTIME + "for rows, tiles in ((5, 2), (32, 2), (33, 0), (200, 0), (0, 0)):\n"
        "    assert runtime.run(*before(rows)) == {0: (rows, 128), 1: (rows, 128), 2: (tiles, 32)}\n",
    )
    assert [line.rsplit(" ", 2)[0] for line in launches] == [
        *("added 2 1 1", "added 2 1 2", "plain 2 1 3", "norm 33 1 1", "dequantise 2 1 1", "norm 200 1 1"),
    ]


def test_a_bundle_that_packs_no_kernel_for_it_keeps_the_norm(driver: Path) -> None:
    launches = run(driver, START + RUNTIME + "assert runtime.run(*before(5))[2] == (0, 32)\n")
    assert [line.split(" ")[0] for line in launches] == ["plain", "norm"]


def test_shares_scale_the_product_behind(driver: Path) -> None:
    launches = run(
        driver,
        START
        + RUNTIME
        + """
refused("packs no kernel quant_tile/float16/4.64/scaled/plain/none", *behind(5, (9, 32)))
add("scaled", "quant_tile/float16/4.64/scaled/plain/none", TILE, rows=32)
for rows, squares in ((5, (9, 32)), (5, (0, 32)), (5, None), (40, (0, 32))):
    assert runtime.run(*behind(rows, squares)) == {0: (rows, 128)}
refused("squares has shape [9, 31]", *behind(5, (9, 31)))
refused("no tiles with more rows", *behind(33, (9, 32)))
""",
    )
    assert [line.split(" ")[0] for line in launches] == ["scaled", "plain", "plain", "plain"]


def test_what_does_not_fit_a_product_before_a_norm_is_refused(driver: Path) -> None:
    launches = run(
        driver,
        START
        + ADDED
        + RUNTIME
        + """
for changed in ({"residual": (4, 128)}, {"gain": (64,)}, {"unit": (2,)}):
    refused("inputs residual, gain and unit", *before(5, **changed))
refused("input x has shape [5, 63]", *before(5, x=(5, 63)))
refused("input weights has shape", *before(5, weights=(2, 8448)))
refused("input bias has shape", *before(5, bias=(64,)))
""",
    )
    assert not launches


def test_a_graph_may_leave_a_norm_to_the_products_around_it(driver: Path) -> None:
    """Without a GPU a session ends only after it has taken the nodes, with a bias and squares and without them."""
    pytest.importorskip("onnx")
    run(
        driver,
        """
import onnxruntime
from onnx import TensorProto, helper
from ops.library import register_cuda

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
rows, weight = (HALF, ["t", 64]), (TensorProto.UINT8, [1, 8448])
inputs = {"x": rows, "w": weight, "residual": rows}
inputs |= {"gain": (HALF, [64]), "unit": (FLOAT, [1]), "bias": (HALF, [64])}
attributes = dict(domain="ai.ortolan", rows=64, columns=64, bits=4, group=64, layout="cuda-fragments")
node = lambda op, names, outputs, **more: helper.make_node(op, names, outputs, **attributes, **more)
add = "QuantMatMulAddRMSNorm"
nodes = [
    node(add, ["x", "w", "residual", "gain", "unit", "bias"], ["y", "sum", "squares"], epsilon=1e-5),
    node("QuantMatMul", ["y", "w", "", "bias", "", "squares"], ["z"]),
    node(add, ["z", "w", "sum", "gain", "unit"], ["y2", "sum2", "squares2"]),
    node("QuantMatMul", ["y2", "w", "", "", "", "squares2"], ["out"]),
]
value = lambda named: [helper.make_tensor_value_info(name, *given) for name, given in named.items()]
graph = helper.make_graph(nodes, "norms", value(inputs), value({"out": rows, "sum2": rows}))
imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.ortolan", 1)]
model = helper.make_model(graph, opset_imports=imports, ir_version=10)
device = CudaDevice()
options = onnxruntime.SessionOptions()
register_cuda(options, device.number, "float16")
try:
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
except Exception as error:
    assert "NOT_IMPLEMENTED" in str(error), error
else:
    raise SystemExit("the session was created")
""",
    )
