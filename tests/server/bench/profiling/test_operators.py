"""Operators are summed by kind and shape, and their bytes and operations are what has to be moved and computed."""

from __future__ import annotations

import pytest

from server.bench.profiling.operators import StepSize, operator_costs
from server.bench.profiling.trace import NodeTime, RunTime
from tests.server.bench.test_floors import CEILINGS, floors

PRODUCT = NodeTime("QuantMatMul", 3.0, ((2, 64), (6, 2, 640)), ((2, 96),), 9000)
GATED = NodeTime("QuantMatMul", 5.0, ((2, 64), (6, 2, 640)), ((2, 48),), 8000)
ATTENTION = NodeTime("PagedAttention", 1.0, ((2, 32), (100, 16, 2, 4)), ((2, 16),), 10**9)
GATHER = NodeTime("QuantGather", 0.5, ((7000, 2, 640), (2,)), ((2, 64),), 10**7)
PLAIN = NodeTime("MatMul", 1.0, ((2, 64),), ((2, 96),), 100)
SIZE = StepSize(sequences=2, queries=1, context=10)


def run(*nodes: NodeTime) -> RunTime:
    return RunTime(10.0, list(nodes))


def test_sums_are_means_over_runs() -> None:
    costs = operator_costs([run(PRODUCT, PRODUCT, ATTENTION), run(PRODUCT, PRODUCT, ATTENTION)], SIZE, floors())
    assert [(cost.operator, cost.calls, cost.seconds) for cost in costs] == [
        ("QuantMatMul", 2.0, 6.0),
        ("PagedAttention", 1.0, 1.0),
    ]
    assert costs[0].shape == "96 x 64"
    assert costs[0].operations == 2 * 2 * 2 * 96 * 64 and costs[0].bytes == 18000


def test_a_gated_product_is_as_wide_as_its_weight() -> None:
    (cost,) = operator_costs([run(GATED)], SIZE, floors())
    assert cost.shape == "96 x 64" and cost.operations == 2 * 2 * 96 * 64


def test_attention_reads_the_cache_that_is_used_and_not_all_of_it() -> None:
    allowed = floors()
    (cost,) = operator_costs([run(ATTENTION)], SIZE, allowed)
    assert cost.bytes == 2 * allowed.cache_bytes(10)
    assert cost.operations == 2 * allowed.attention_ops(1, 10)


def test_a_lookup_reads_rows_and_a_prepacked_weight_still_counts() -> None:
    (gather,) = operator_costs([run(GATHER)], SIZE, floors())
    assert gather.bytes == 2 * 4 * 2 * 64
    (plain,) = operator_costs([run(PLAIN)], SIZE, floors())
    assert plain.bytes == 4 * (2 * (96 + 64) + 96 * 64)


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    for node in (PRODUCT, PLAIN, ATTENTION):
        (cost,) = operator_costs([run(node)], SIZE, floors())
        moved, computed = cost.bytes / CEILINGS.read_bytes_s, cost.operations / CEILINGS.fp32_ops_s
        assert cost.floor_seconds == pytest.approx(max(moved, computed))
        assert cost.gap == pytest.approx(cost.seconds / cost.floor_seconds)


def test_no_runs_no_operators() -> None:
    assert operator_costs([], SIZE, floors()) == []
