"""Greedy choice."""

from __future__ import annotations

import numpy as np
import pytest

from ops.triton.sample import argmax_kernel, argmax_part_kernel
from tests.ops.triton.tools import poisoned, tensor


@pytest.mark.parametrize(("rows", "columns"), [(1, 100), (3, 1000), (2, 257)])
def test_the_first_of_the_largest_is_taken(device: str, rows: int, columns: int) -> None:
    logits = np.random.default_rng(rows).normal(0, 1, (rows, columns)).astype(np.float32)
    logits[0, [columns - 3, columns // 2]] = 50.0
    parts = -(-columns // 256)
    values, indices = poisoned((rows, parts), device, "float32"), tensor(np.zeros((rows, parts), np.int32), device)
    ids, tops = tensor(np.full(rows, -1, np.int64), device), poisoned((rows,), device, "float32")
    argmax_part_kernel[(rows, parts)](tensor(logits, device), values, indices, columns, parts, PART=256, BLOCK=64)
    argmax_kernel[(rows,)](values, indices, ids, tops, parts, BLOCK=8)
    assert tops.tolist() == logits.max(axis=1).tolist()
    assert ids.tolist() == logits.argmax(axis=1).tolist()
