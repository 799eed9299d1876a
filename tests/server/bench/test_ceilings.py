"""Ceilings are measured and plausible; none is compared with a clock."""

from __future__ import annotations

import pytest

from ops.errors import ResourceError
from server.bench import ceilings


def test_small_measurements_are_positive() -> None:
    assert ceilings.read_bandwidth(2, size=2**22) > 0
    assert ceilings.product_rate("MatMul", 1, size=64) > 0
    assert ceilings.product_rate("MatMulInteger", 1, size=64) > 0


def test_measured_in_another_process() -> None:
    found = ceilings.measure_apart(1)
    assert found.threads == 1
    assert min(found.read_bytes_s, found.fp32_ops_s, found.int8_ops_s) > 1e6


def test_a_failing_child_is_a_typed_error() -> None:
    with pytest.raises(ResourceError, match="could not be measured"):
        ceilings.measure_apart(-1)
