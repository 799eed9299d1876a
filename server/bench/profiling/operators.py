"""The operators of a step, summed by kind and weight shape: time, bytes, operations, and the floor of both."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ops.layout import TILE
from server.bench.floors import Floors
from server.bench.profiling.trace import NodeTime, RunTime

_PLAIN_PRODUCTS = {"MatMul", "Gemm", "MatMulNBits"}
_LOOKUPS = {"Gather", "GatherBlockQuantized", "QuantGather"}
_FLOAT_BYTES = 4


class StepSize(msgspec.Struct, frozen=True):
    """The step that is profiled: `sequences` sequences, each with `queries` tokens in it and `context` after it."""

    sequences: int
    queries: int
    context: int


class OperatorCost(msgspec.Struct, frozen=True):
    """All nodes of one operator and weight shape, in one step. bytes and operations are what has to be moved and
    computed at least (a multiply-add is two operations), floor_seconds what the machine needs for that."""

    operator: str
    shape: str
    calls: float
    seconds: float
    bytes: float
    operations: float
    floor_seconds: float

    @property
    def gap(self) -> float:
        """How many times its floor it takes."""
        return self.seconds / self.floor_seconds if self.floor_seconds else math.inf


def operator_costs(runs: Sequence[RunTime], size: StepSize, floors: Floors) -> list[OperatorCost]:
    """The operators of the mean of `runs`, which all ran steps of `size`; the slowest first."""
    groups: dict[tuple[str, str], list[NodeTime]] = {}
    for run in runs:
        for node in run.nodes:
            groups.setdefault((node.operator, _shape(node)), []).append(node)
    attentions = sum(node.operator == "PagedAttention" for node in runs[0].nodes) if runs else 0
    costs = []
    for (operator, shape), nodes in groups.items():
        calls = len(nodes) / len(runs)
        if operator == "PagedAttention":
            moved = size.sequences * floors.cache_bytes(size.context) * calls / attentions
            operations = size.sequences * floors.attention_ops(size.queries, size.context) * calls / attentions
        else:
            moved = sum(_bytes(node) for node in nodes) / len(runs)
            operations = sum(_operations(node) for node in nodes) / len(runs)
        floor = max(moved / floors.ceilings.read_bytes_s, operations / floors.peak_ops)
        seconds = sum(node.seconds for node in nodes) / len(runs)
        costs.append(OperatorCost(operator, shape, calls, seconds, moved, operations, floor))
    return sorted(costs, key=lambda cost: -cost.seconds)


def _product(node: NodeTime) -> tuple[int, int, int] | None:
    """Rows, N and K of a matrix product with a weight; None for any other node.

    The rows of a quantised weight are read off its tiles: with a gated activation the output is half as wide.
    """
    if node.operator not in _PLAIN_PRODUCTS | {"QuantMatMul"} or not node.inputs or not node.outputs:
        return None
    rows, width = math.prod(node.outputs[0][:-1]), node.outputs[0][-1]
    if node.operator == "QuantMatMul":
        tiled = node.inputs[1][0] * TILE
        width = 2 * width if tiled >= 2 * width else width
    return rows, width, node.inputs[0][-1]


def _shape(node: NodeTime) -> str:
    """N x K of a weight, else the shape of one row of the output."""
    product = _product(node)
    if product is not None:
        return f"{product[1]} x {product[2]}"
    return " x ".join(map(str, node.outputs[0][1:])) if node.outputs else ""


def _operations(node: NodeTime) -> float:
    product = _product(node)
    if product is not None:
        return 2.0 * math.prod(product)
    return float(math.prod(node.outputs[0])) if node.outputs else 0.0


def _bytes(node: NodeTime) -> float:
    """What a node has to read and write at least: rows that are looked up, not the table; a weight also where
    ONNX Runtime prepacked it and therefore counts it no longer."""
    if node.operator in _LOOKUPS:
        return 2.0 * _FLOAT_BYTES * math.prod(node.outputs[0])
    if node.operator == "MatMul" and (product := _product(node)):
        return _FLOAT_BYTES * (product[0] * (product[1] + product[2]) + product[1] * product[2])
    return float(node.bytes)
