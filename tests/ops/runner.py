"""Runs one operator of the domain `ai.ortolan` in a session of its own, as a graph of one node.

Making the graph needs the onnx package: tests that import this start with `pytest.importorskip("onnx")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from ops.library import available_kernels, register
from ops.schema import DOMAIN, SCHEMAS, VERSION, Input, Schema

Array = NDArray[Any]
ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "float16": 10, "uint32": 12}
KERNELS = available_kernels()

# What ORT raises where an operator refuses: when it makes the session, and when it runs it.
REFUSED = (Fail, InvalidArgument, RuntimeException, RuntimeError)


@dataclass(frozen=True)
class Node:
    """One node: its operator, its attributes, and for each input its dtype and rank, None where it is left out."""

    op: str
    attributes: tuple[tuple[str, int | float | str], ...]
    inputs: tuple[tuple[str, int] | None, ...]
    kernels: str = "auto"
    threads: int = 2
    activations: str = "int8"


def _rank(shape: str) -> int:
    """The rank of an output; one that lies in a cache's memory has the cache's."""
    return shape.partition("]")[0].count(",") + 1 if shape.startswith("[") else 4


def _outputs(schema: Schema) -> list[Input]:
    """Those that every kernel of an operator has."""
    return [one for one in schema.outputs if not one.optional]


def _model(node: Node) -> bytes:
    from onnx import helper

    schema = SCHEMAS[node.op]
    present = [one if given else None for one, given in zip(schema.inputs, node.inputs, strict=False)]
    types = {one.name: given for one, given in zip(schema.inputs, node.inputs, strict=False) if given}
    letters = {"T": "float32", "float32": "float32", "I32": "int32", "I64": "int64"} | {
        one.type: types[one.name][0] for one in schema.inputs if one.name in types
    }

    def value(name: str, dtype: str, rank: int) -> Any:
        return helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], [f"{name}.{i}" for i in range(rank)])

    proto = helper.make_node(
        node.op,
        [one.name if one else "" for one in present],
        [one.name for one in _outputs(schema)],
        domain=DOMAIN,
        **dict(node.attributes),
    )
    outputs = [value(one.name, letters[one.type], _rank(one.shape)) for one in _outputs(schema)]
    graph = helper.make_graph([proto], "one", [value(name, *types[name]) for name in types], outputs)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, VERSION)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


@lru_cache(maxsize=256)
def session(node: Node) -> onnxruntime.InferenceSession:
    """A session over the graph of one node; kept, since many cases share one."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = node.threads
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    register(options, node.kernels, node.activations)
    return onnxruntime.InferenceSession(_model(node), options, providers=["CPUExecutionProvider"])


def run(
    op: str,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, int | float | str],
    *,
    kernels: str = "auto",
    threads: int = 2,
    activations: str = "int8",
    shared: bool = True,
) -> dict[str, Array]:
    """Run `op` once and return its outputs by name.

    Outputs that the schema calls the same buffer are bound to their input's memory, so that `inputs` hold the
    updated caches afterwards; `shared=False` binds them apart, which the operators must refuse.
    """
    schema = SCHEMAS[op]
    order = [inputs.get(one.name) for one in schema.inputs]
    while order and order[-1] is None:
        order.pop()
    node = Node(
        op,
        tuple(sorted(attributes.items())),
        tuple(None if one is None else (one.dtype.name, one.ndim) for one in order),
        kernels,
        threads,
        activations,
    )
    prepared = session(node)
    binding = prepared.io_binding()
    values = {
        one.name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for one, array in zip(schema.inputs, order, strict=False)
        if array is not None
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for one in _outputs(schema):
        source = one.name.removesuffix("_out")
        if shared and source in values and one.name != source:
            binding.bind_ortvalue_output(one.name, values[source])
        else:
            binding.bind_output(one.name)
    prepared.run_with_iobinding(binding)
    return {one.name: value.numpy() for one, value in zip(_outputs(schema), binding.get_outputs(), strict=True)}
